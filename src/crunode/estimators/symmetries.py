"""Directions in which a network's weights can move without any change of its outputs, and why.

Every family is proposed from the shapes of the weights alone, and kept only if a finite random move along it leaves
the outputs on the data as they were; so that nothing has to be known of how the layers are connected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.core.rng import preserved_rng
from crunode.curvature.jacobian import Evaluation
from crunode.curvature.rank import numeric_rank

__all__ = ["Flat", "known_symmetries"]

# Change of outputs, relative to that of a random move of the same length, below which a move is flat.
_SAME, _SAME_SINGLE = 1e-7, 1e-4
_EXAMPLES, _MOST_UNITS, _MOST_PAIRS = 1024, 256, 64
_PARALLEL = 1e-6


@dataclass(frozen=True)
class Flat:
    """A family of flat directions.

    Attributes:
        kind: What they are.
        count: How many directions it has.
        new: How many of them no family before it has.
        where: Which weights.
        why: What leaves the outputs as they are.
        change: Change of the outputs by a finite move along them, relative to a random move of the same length.
    """

    kind: str
    count: int
    new: int
    where: str
    why: str
    change: float

    def __str__(self) -> str:
        return f"{self.count} by {self.why.format(where=self.where)}"


@dataclass(frozen=True)
class _Family:
    kind: str
    where: str
    why: str
    tangents: Tensor
    change: float


class _Moves:
    """Weights by name, and whether outputs stay the same at others."""

    def __init__(self, seen: Evaluation, seed: int) -> None:
        self.seen = seen
        self.generator = torch.Generator().manual_seed(seed)
        self.batch = next(iter(seen.landscape.passes(_EXAMPLES)))
        self.weights = {k: v.double() for k, v in seen.packing.unravel(seen.center).items()}
        self.limit = _SAME if seen.dtype == torch.float64 else _SAME_SINGLE
        plain = self._raw(seen.center)
        self.shift = self._blind_to_shifts(plain)
        self.reference = self._seen_part(plain)

    def _raw(self, w: Tensor) -> Tensor:
        with torch.no_grad(), preserved_rng():
            return self.seen.outputs(w, self.batch)

    def _blind_to_shifts(self, outputs: Tensor) -> bool:
        """Whether the loss does not see a number that is added to all outputs of an example, as for logits."""
        if outputs.ndim < 2 or outputs.shape[-1] < 2:
            return False
        loss, target = self.seen.landscape.loss_form.fn, self.batch[-1]
        given = self.seen.cast(target) if isinstance(target, Tensor) else target
        with torch.no_grad(), preserved_rng():
            first, second = (loss(outputs + shift, given).double() for shift in (0.0, 1.0))
        return bool(torch.allclose(first, second, rtol=1e-9, atol=1e-9))

    def _seen_part(self, outputs: Tensor) -> Tensor:
        return outputs - outputs.mean(-1, keepdim=True) if self.shift else outputs

    def random(self, *shape: int) -> Tensor:
        """Standard normal numbers on the landscape's device."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.seen.center.device)

    def step(self, name: str, *shape: int) -> Tensor:
        """The same in the size of some weights, and no less than one."""
        value = self.weights[name]
        return self.random(*shape).mul(1 + value.norm() / value.numel() ** 0.5)

    def flat(self, changed: dict[str, Tensor]) -> Tensor:
        """Weights with some changed, as a vector."""
        return self.seen.packing.ravel({**self.weights, **changed}).double()

    def change(self, changed: dict[str, Tensor]) -> float:
        """How much the outputs change, relative to a random move of the same weights by the same length."""
        moved = self._seen_part(self._raw(self.flat(changed).to(self.seen.center)))
        aside = {}
        for name, value in changed.items():
            length = float((value - self.weights[name]).norm())
            noise = self.random(*value.shape)
            aside[name] = self.weights[name] + noise * (length / max(float(noise.norm()), 1e-300))
        other = self._seen_part(self._raw(self.flat(aside).to(self.seen.center)))
        scale = max(float((other - self.reference).norm()), float(self.reference.norm()), 1e-300)
        found = float((moved - self.reference).norm()) / scale
        return found if found == found else float("inf")

    def tangent(self, changed: dict[str, Tensor]) -> Tensor:
        """A direction with these parts, and zero in all other weights."""
        zero = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        return self.seen.packing.ravel({**zero, **changed}).double()


def known_symmetries(seen: Evaluation, unused: np.ndarray | None, *, seed: int) -> tuple[tuple[Flat, ...], int]:
    """Families of flat directions that have a known cause, and how many independent directions they have together.

    Args:
        seen: The evaluation of a landscape.
        unused: Which parameters no output depends on, by the Jacobian; None where that is not known.
        seed: Random moves come from it.

    Example:
        >>> from crunode.core.landscape import Landscape
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)).double()
        >>> x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> seen = Evaluation(Landscape(net, (x, net(x).detach()), "gaussian"))
        >>> families, count = known_symmetries(seen, None, seed=0)
        >>> count, families[0].kind  # GL(2)
        (4, 'changes of basis between linear layers')
    """
    moves = _Moves(seen, seed)
    found: list[Flat] = []
    basis = torch.zeros(0, seen.dim, dtype=torch.float64, device=seen.center.device)
    before = 0
    for family in _families(moves, unused):
        basis = torch.cat([basis, family.tangents])
        values = torch.linalg.svdvals(basis / basis.norm(dim=1, keepdim=True).clamp_min(1e-300))
        total = numeric_rank(values.cpu().numpy(), max(basis.shape), 1e-8).rank
        own = torch.linalg.svdvals(family.tangents).cpu().numpy()
        count = numeric_rank(own, max(basis.shape), 1e-8).rank
        if total > before:
            found.append(Flat(family.kind, count, total - before, family.where, family.why, family.change))
        before = total
    return tuple(found), before


def _families(moves: _Moves, unused: np.ndarray | None) -> Iterator[_Family]:
    pairs = list(_pairs(moves.weights))[:_MOST_PAIRS]
    for first, second, bias in pairs:
        yield from _between(moves, first, second, bias)
    for first, second, bias in pairs:
        yield from _units(moves, first, second, bias)
    yield from _shifts(moves)
    yield from _unused(moves, unused)


def _pairs(weights: dict[str, Tensor]) -> Iterator[tuple[str, str, str | None]]:
    """Matrices where one may follow the other, with the bias of the first."""
    matrices = {name: value for name, value in weights.items() if value.ndim == 2}
    for first, one in matrices.items():
        for second, two in matrices.items():
            if first != second and one.shape[0] == two.shape[1]:
                bias = first.removesuffix("weight") + "bias"
                known = bias != first and bias in weights and weights[bias].shape == one.shape[:1]
                yield first, second, bias if known else None


def _between(moves: _Moves, first: str, second: str, bias: str | None) -> Iterator[_Family]:
    one, two = moves.weights[first], moves.weights[second]
    hidden = one.shape[0]
    into = {first: one} | ({bias: moves.weights[bias]} if bias else {})
    where = f"{first} → {second}"
    if hidden > 1:
        turn = torch.eye(hidden, dtype=one.dtype, device=one.device) + 0.3 * moves.random(hidden, hidden) / hidden**0.5
        change = moves.change({**{k: turn @ v for k, v in into.items()}, second: two @ torch.linalg.inv(turn)})
        if change < moves.limit:
            tangents = []
            for j in range(hidden):
                for k in range(hidden):
                    unit = torch.zeros(hidden, hidden, dtype=one.dtype, device=one.device)
                    unit[j, k] = 1.0
                    tangents.append(moves.tangent({**{n: unit @ v for n, v in into.items()}, second: -two @ unit}))
            why = "an invertible matrix between {where} and its inverse after it"
            yield _Family("changes of basis between linear layers", where, why, torch.stack(tangents), change)
            return
    for degree, kind, how in (
        (1, "ReLU scalings", "scaling units of {where} (incoming · c, outgoing / c)"),
        (2, "scalings of quadratic units", "scaling units of {where} (incoming · c, outgoing / c²)"),
    ):
        units, worst = _scaled(moves, into, second, degree)
        if units:
            tangents = [_scaling(moves, into, second, j, degree) for j in units]
            yield _Family(kind, where, how, torch.stack(tangents), worst)
            return


def _scaled(moves: _Moves, into: dict[str, Tensor], second: str, degree: int) -> tuple[list[int], float]:
    """Units that may be scaled, all together or else one by one."""
    two = moves.weights[second]
    hidden = two.shape[1]

    def by(factors: Tensor) -> float:
        scaled = {k: v * (factors[:, None] if v.ndim > 1 else factors) for k, v in into.items()}
        return moves.change({**scaled, second: two / factors**degree})

    alive = [j for j in range(hidden) if any(bool(v[j].any()) for v in into.values()) and bool(two[:, j].any())]
    factors = 0.6 + torch.rand(hidden, generator=moves.generator, dtype=torch.float64).to(two.device)
    change = by(factors)
    if change < moves.limit:
        return alive, change
    kept, worst = [], 0.0
    for j in alive if hidden <= _MOST_UNITS else ():
        single = torch.ones_like(factors)
        single[j] = 1.7
        change = by(single)
        if change < moves.limit:
            kept.append(j)
            worst = max(worst, change)
    return kept, worst


def _scaling(moves: _Moves, into: dict[str, Tensor], second: str, j: int, degree: int) -> Tensor:
    parts = {name: torch.zeros_like(value) for name, value in into.items()}
    for name, value in into.items():
        parts[name][j] = value[j]
    out = torch.zeros_like(moves.weights[second])
    out[:, j] = -degree * moves.weights[second][:, j]
    return moves.tangent({**parts, second: out})


def _units(moves: _Moves, first: str, second: str, bias: str | None) -> Iterator[_Family]:
    """Dead units, units that nothing reads, and units that are copies of one another."""
    one, two = moves.weights[first], moves.weights[second]
    hidden = one.shape[0]
    if hidden > _MOST_UNITS:
        return
    rows = torch.cat([one, moves.weights[bias][:, None]], 1) if bias else one
    where = f"{first} → {second}"
    dead, idle, changes = [], [], {"dead": 0.0, "idle": 0.0}
    for j in range(hidden):
        out = two.clone()
        out[:, j] += moves.step(second, two.shape[0])
        change = moves.change({second: out})
        if change < moves.limit:
            dead += [_entry(moves, second, (i, j)) for i in range(two.shape[0])]
            changes["dead"] = max(changes["dead"], change)
        into = _replaced(moves, first, bias, j, 1e-3 if change < moves.limit else 1.0)
        opposite = {name: 2 * moves.weights[name] - value for name, value in into.items()}
        change = max(moves.change(into), moves.change(opposite))  # a unit on the edge of its kink dies on one side
        if change < moves.limit:
            idle += [_entry(moves, first, (j, k)) for k in range(one.shape[1])]
            idle += [_entry(moves, bias, (j,))] if bias else []
            changes["idle"] = max(changes["idle"], change)
    if dead:
        why = "outgoing weights of units of {where} that are zero on all examples"
        yield _Family("outgoing weights of dead units", where, why, torch.stack(dead), changes["dead"])
    if idle:
        why = "incoming weights of units of {where} that stay dead or are not read"
        yield _Family("incoming weights of dead or unread units", where, why, torch.stack(idle), changes["idle"])
    copies, worst = [], 0.0
    for j in range(hidden):
        for k in range(j + 1, hidden):
            ratio = _parallel(rows[j], rows[k])
            if ratio is None:
                continue
            step = moves.step(second, two.shape[0])
            out = two.clone()
            out[:, j] += ratio * step
            out[:, k] -= step
            change = moves.change({second: out})
            if change < moves.limit:
                worst = max(worst, change)
                for i in range(two.shape[0]):
                    tilt = torch.zeros_like(two)
                    tilt[i, j], tilt[i, k] = ratio, -1.0
                    copies.append(moves.tangent({second: tilt}))
    if copies:
        why = "outgoing weight that passes between copies of a unit of {where}"
        yield _Family("exchanges between duplicate units", where, why, torch.stack(copies), worst)


def _parallel(a: Tensor, b: Tensor) -> float | None:
    """The number c with b = c a; None where there is none."""
    size = float(a.norm())
    if size == 0 or float(b.norm()) == 0:
        return None
    ratio = float(a @ b) / size**2
    return ratio if float((b - ratio * a).norm()) <= _PARALLEL * float(b.norm()) else None


def _replaced(moves: _Moves, first: str, bias: str | None, j: int, size: float) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name in (first, bias):
        if name is not None:
            value = moves.weights[name].clone()
            scale = size * (1.0 if size >= 1 else float(value.norm()) / value.numel() ** 0.5 or 1.0)
            value[j] += scale * moves.random(*value[j].shape)
            found[name] = value
    return found


def _entry(moves: _Moves, name: str, index: tuple[int, ...]) -> Tensor:
    part = torch.zeros_like(moves.weights[name])
    part[index] = 1.0
    return moves.tangent({name: part})


def _shifts(moves: _Moves) -> Iterator[_Family]:
    """A number added to all logits, by the last layer."""
    width = moves.reference.shape[-1] if moves.shift else 0
    for name, value in moves.weights.items():
        if not moves.shift or value.shape[:1] != (width,) or value.ndim > 2:
            continue
        change = moves.change({name: value + moves.random(*value.shape[1:])})
        if change < moves.limit:
            tangents = []
            for k in range(value[0].numel()):
                part = torch.zeros_like(value).view(width, -1)
                part[:, k] = 1.0
                tangents.append(moves.tangent({name: part.view_as(value)}))
            why = "the same number added to all logits by {where}"
            yield _Family("shifts of all logits", name, why, torch.stack(tangents), change)


def _unused(moves: _Moves, unused: np.ndarray | None) -> Iterator[_Family]:
    """Parameters that no output depends on."""
    if unused is None:
        return
    still, start = torch.as_tensor(unused, device=moves.seen.center.device), 0
    for name, value in moves.weights.items():
        part = still[start : start + value.numel()].reshape(value.shape)
        start += value.numel()
        if not bool(part.any()):
            continue
        moved = value + part * moves.random(*value.shape)
        change = moves.change({name: moved})
        if change < moves.limit:
            entries: list[Any] = part.nonzero().tolist()
            tangents = torch.stack([_entry(moves, name, tuple(e)) for e in entries])
            yield _Family("unused parameters", name, "entries of {where} that no output depends on", tangents, change)
