"""`lazy-training`: wide two-layer networks beside their linearization (Tanner, lecture 9)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crunode import Landscape
from crunode.core import derived_seed, need
from crunode.curvature import (
    gauss_newton_step,
    gradient_change_bound,
    lazy_diagnostics,
    linearized_descent,
    width_exponent,
)
from crunode.jobs import Cell, Expected, Recipe, Result, Row

__all__ = ["KINDS", "RECIPE", "Nets", "cells", "compute", "figures", "initial", "rows", "train"]

KINDS = {"signs": "random signs", "both": "random signs, both layers", "same": "equal signs"}
"""Output weights a_i = ±1 as in the lecture; the same and trained as well; a_i = 1, the first outputs taken off."""

INPUTS, EXAMPLES, SPREAD = 4, 8, 1.5
BEND = 2 / math.sqrt(2 * math.pi)
"""max |φ''| of GELU, at 0: φ'' = (2 − z²) n(z) with the normal density n."""

_SIZES: Mapping[str, dict[str, Any]] = {
    "toy": {"widths": (256, 512, 1024), "nets": 24, "steps": 100, "checked": 256},
    "paper": {"widths": (128, 256, 512, 1024, 2048, 4096, 8192), "nets": 64, "steps": 120, "checked": 1024},
}
# Networks times their width that are trained together, so that they stay in a processor's cache; steps at the end over
# which a rate is read; and how many times smaller than the best a small rate is.
_TOGETHER, _READ, _SMALLER = 1 << 15, 30, 10


@dataclass(frozen=True)
class Nets:
    """Several networks p^(-1/2) Σ a_i φ(w_i·x) of one width, φ = GELU, on the same inputs.

    Attributes:
        x: Inputs, shape (examples, inputs).
        hidden: w, shape (networks, p, inputs).
        outer: a, shape (networks, p).
        offset: What is taken off the outputs, shape (networks, examples).
        both: Whether a is trained too.
    """

    x: Tensor
    hidden: Tensor
    outer: Tensor
    offset: Tensor
    both: bool

    def look(self) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, shape (networks, examples), and their derivatives in w_i·x and in a_i, each with a last axis p."""
        z = self.x @ self.hidden.transpose(1, 2)
        below = 0.5 * (1 + torch.erf(z / math.sqrt(2)))
        slope = below + z * torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
        scale = self.outer.shape[1] ** -0.5
        heads = z * below * scale
        outputs = (heads @ self.outer[:, :, None])[..., 0] - self.offset
        return outputs, slope * (self.outer[:, None] * scale), heads

    def kernel(self) -> Tensor:
        """JJᵀ, shape (networks, examples, examples)."""
        _, inner, heads = self.look()
        found = (inner @ inner.transpose(1, 2)) * (self.x @ self.x.T)
        return found + heads @ heads.transpose(1, 2) if self.both else found

    def moved(self, inner: Tensor, heads: Tensor, amounts: Tensor) -> Nets:
        """At θ + Jᵀ amounts, for J as `look` gave it, here or elsewhere."""
        hidden = self.hidden + (inner * amounts[:, :, None]).transpose(1, 2) @ self.x
        outer = self.outer + (amounts[:, None] @ heads)[:, 0] if self.both else self.outer
        return replace(self, hidden=hidden, outer=outer)

    def linearized(self, there: Nets) -> Tensor:
        """Outputs of the linearization here at the weights of other networks."""
        outputs, inner, heads = self.look()
        change = (inner * (self.x @ (there.hidden - self.hidden).transpose(1, 2))).sum(2)
        return outputs + change + (heads * (there.outer - self.outer)[:, None]).sum(2)

    def step_to(self, there: Nets) -> Tensor:
        """θ of other networks less θ here, shape (networks, trained weights)."""
        hidden = (there.hidden - self.hidden).flatten(1)
        return torch.cat([hidden, there.outer - self.outer], dim=1) if self.both else hidden

    def only(self, index: int) -> Nets:
        """One of them."""
        one = slice(index, index + 1)
        return replace(self, hidden=self.hidden[one], outer=self.outer[one], offset=self.offset[one])


class _Net(nn.Module):
    """One network as a module of inputs and offsets."""

    def __init__(self, nets: Nets) -> None:
        super().__init__()
        self.hidden = nn.Parameter(nets.hidden[0].clone())
        self.outer = nn.Parameter(nets.outer[0].clone(), requires_grad=nets.both)

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        return nn.functional.gelu(x @ self.hidden.T) @ self.outer / math.sqrt(len(self.outer)) - offset


def _data() -> tuple[Tensor, Tensor]:
    """Inputs of length √d, and targets ±1: the same in all runs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, INPUTS, generator=generator, dtype=torch.float64)
    y = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(EXAMPLES // 2)
    return math.sqrt(INPUTS) * x / x.norm(dim=1, keepdim=True), y


def initial(kind: str, width: int, seeds: Sequence[int]) -> Nets:
    """Networks with w from N(0, σ²/d), one for each seed."""
    hidden, signs = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        hidden.append(torch.randn(width, INPUTS, generator=generator, dtype=torch.float64))
        signs.append(2.0 * torch.randint(2, (width,), generator=generator).double() - 1)
    w, a = SPREAD / math.sqrt(INPUTS) * torch.stack(hidden), torch.stack(signs)
    nets = Nets(_data()[0], w, torch.ones_like(a) if kind == "same" else a, w.new_zeros(()), kind == "both")
    first = nets.look()[0]
    return replace(nets, offset=first if kind == "same" else torch.zeros_like(first))


def train(nets: Nets, rate: Tensor, steps: int) -> tuple[Nets, Tensor]:
    """Gradient descent on ½‖f − y‖² with a rate for each network; also ‖f − y‖² before each step and after the last."""
    _, y = _data()
    losses = []
    for step in range(steps + 1):
        outputs, inner, heads = nets.look()
        rest = outputs - y
        losses.append(rest.square().sum(1))
        if step < steps:
            nets = nets.moved(inner, heads, -rate[:, None] * rest)
    return nets, torch.stack(losses)


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each kind of network and width, and one for each kind that the library's functions measure."""
    plan = _SIZES[size]
    found = []
    for index, kind in enumerate(KINDS):
        for width in plan["widths"]:
            settings = {"kind": kind, "width": width, "nets": plan["nets"], "steps": plan["steps"]}
            found.append(Cell(f"{kind} {width}", settings | {"seed": derived_seed(seed, index, width)}))
        settings = {"kind": kind, "width": plan["checked"], "steps": plan["steps"], "checked": True}
        found.append(Cell(f"{kind} checked", settings | {"seed": derived_seed(seed, index, 0)}))
    return found


def compute(cell: Cell) -> dict[str, Any]:
    """What training changes, for each network of a kind and width; or one of them seen by the library."""
    settings = cell.settings
    if settings.get("checked"):
        return _checked(settings)
    seeds = [derived_seed(settings["seed"], k) for k in range(settings["nets"])]
    together = max(1, _TOGETHER // settings["width"])
    found = [
        _measured(initial(settings["kind"], settings["width"], seeds[k : k + together]), settings["steps"])
        for k in range(0, len(seeds), together)
    ]
    return {name: [value for part in found for value in part[name].tolist()] for name in found[0]}


def _measured(nets: Nets, steps: int) -> dict[str, Tensor]:
    _, y = _data()
    before = nets.kernel()
    low, high = _ends(before)
    rate = 2 / (low + high)
    trained, losses = train(nets, rate, steps)
    outputs, inner, heads = nets.look()
    step = nets.step_to(trained)
    after = trained.kernel()
    # The Gauss-Newton step is Jᵀ(JJᵀ)⁻¹(y − f).
    newton = nets.step_to(nets.moved(inner, heads, torch.linalg.solve(before, (y - outputs)[:, :, None])[..., 0]))
    gained = (losses[-1] / losses[0]).log()
    return {
        "error": (trained.look()[0] - nets.linearized(trained)).square().mean(1).sqrt(),
        "kernel": (after - before).flatten(1).norm(dim=1) / before.flatten(1).norm(dim=1),
        "distance": step.norm(dim=1),
        "per_coordinate": step.square().mean(1).sqrt(),
        "largest": step.abs().amax(1),
        "from_newton": (step - newton).norm(dim=1) / newton.norm(dim=1),
        "newton_bound": newton.norm(dim=1) * low.sqrt() / (y - outputs).norm(dim=1),
        "condition": high / low,
        "over_bound": gained / (2 * steps * ((high - low) / (high + low)).log()),
    }


def _ends(kernel: Tensor) -> tuple[Tensor, Tensor]:
    eigen = torch.linalg.eigvalsh(kernel)
    return eigen[:, 0], eigen[:, -1]


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """One network as a landscape: diagnostics, Gauss-Newton step and linearized descent of the library."""
    x, y = _data()
    nets = initial(settings["kind"], settings["width"], [settings["seed"]])
    own = {name: float(value) for name, value in _measured(nets, settings["steps"]).items()}
    low, high = (float(v) for v in _ends(nets.kernel()))
    trained, _ = train(nets, torch.tensor([2 / (low + high)], dtype=x.dtype), settings["steps"])
    slow, losses = train(nets, torch.tensor([2 / (low + high) / _SMALLER], dtype=x.dtype), 5 * settings["steps"])
    _, plain = train(nets, torch.tensor([1 / high], dtype=x.dtype), settings["steps"])
    land = Landscape(_Net(nets), (x, nets.offset[0], y), "gaussian")
    seen = lazy_diagnostics(land, _Net(trained))
    pairs = {
        "error": seen.error,
        "kernel": seen.kernel_change,
        "distance": seen.distance,
        "per_coordinate": seen.per_coordinate,
        "largest": seen.largest,
    }
    step = gauss_newton_step(land)
    descent = linearized_descent(land, 4 * settings["steps"])
    moved = descent.weights - land.center
    jacobian = torch.func.jacrev(lambda w: land.batch_outputs(w, (x, nets.offset[0], y)))(land.center)
    generator = torch.Generator().manual_seed(derived_seed(settings["seed"], 1))
    others = torch.randn(100, land.dim, generator=generator, dtype=x.dtype) * float(step.step.abs().mean())
    others -= (torch.linalg.pinv(jacobian) @ (jacobian @ others.T)).T
    lengths = (step.step + others).norm(dim=1)
    return {
        "agreement": max(abs(float(e) / own[name] - 1) for name, e in pairs.items()),
        "condition": descent.condition.value,
        "contraction": descent.contraction.value,
        "measured": descent.measured.value,
        "newton_loss": step.predicted.value,
        "limit_from_newton": float((moved - step.step).norm() / step.step.norm()),
        "shortest_other": float(lengths.min() / step.step.norm()),
        "plain_rate": float((plain[-1] / plain[-1 - _READ]) ** (1 / _READ)),
        "small_rate": float((losses[-1] / losses[-1 - _READ]) ** (1 / _READ)),
        "small_rate_predicted": (1 - 2 / (low + high) / _SMALLER * float(_ends(slow.kernel())[0])) ** 2,
        "gradient_change": _gradient_change(x, settings["width"]),
    }


def _gradient_change(x: Tensor, width: int) -> dict[str, float]:
    """The squared change of the gradient along a step where φ' bends most, over the right bound and the printed one."""
    hidden = torch.zeros(1, width, INPUTS, dtype=x.dtype)
    here = Nets(x, hidden, torch.ones_like(hidden[..., 0]), torch.zeros(1, EXAMPLES, dtype=x.dtype), False)
    there = replace(here, hidden=hidden + 1e-3 * x[0] / x[0].norm())
    change = float((here.look()[1] - there.look()[1])[0, 0].norm() * x[0].norm()) ** 2
    distance = float((there.hidden - here.hidden).norm())
    length = float(x[0].norm())
    printed = BEND * length**2 * distance**2 / width
    return {"right": change / float(gradient_change_bound(x[:1], width, BEND, distance)), "printed": change / printed}


_BOUND = "lecture 9, difference of network and linear approximation"
_CANCEL = "p^(-3/2) Σ a_i³(...) with a_i = ±1 at random"
_EXTREME = (
    "the most movable unit is found only as the width grows, and output weights move in proportion to their inputs, "
    "the largest of which grows as √(log p): both bring the slope up"
)
_SECOND = "corrections of the next order in p^(-1/2) are allowed for"


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Exponents of each kind, rates, and what holds for each Gauss-Newton step."""
    table = []
    for kind, title in KINDS.items():
        mine = [r for r in results if r.settings["kind"] == kind]
        swept = [r for r in mine if not r.settings.get("checked")]
        if len(swept) > 2:
            table += _exponents(kind, title, swept)
            table.append(_rate(title, max(swept, key=lambda r: r.settings["width"])))
        for result in mine:
            if result.settings.get("checked"):
                table += _exact_rows(title, result)
    return table


def _exponents(kind: str, title: str, swept: Sequence[Result]) -> list[Row]:
    def slope(name: str) -> tuple[float, float]:
        found = width_exponent({r.settings["width"]: r[name] for r in swept})
        return found.value, found.error

    # √(log p) has the exponent 1/(2 log p) at the width p.
    extreme = 1 / (2 * math.log(min(r.settings["width"] for r in swept))) if kind == "both" else 0.06
    table = []
    for name, words in (("error", "linearization error"), ("kernel", "change of the kernel")):
        value, error = slope(name)
        if kind == "same":
            law = Expected(-0.5, 0.02, _BOUND, _SECOND, exact=True)
        else:
            bound = Expected(-0.5, 0.0, _BOUND, side="at most")
            table.append(bound.row(f"{title}: exponent of the {words}, bound", value, se=error))
            law = Expected(-1.0, 0.02, _CANCEL, _SECOND, exact=True)
        table.append(law.row(f"{title}: exponent of the {words}", value, se=error))
    for name, words, power, tolerance, note in (
        ("per_coordinate", "movement per coordinate", -0.5, 0.02, _SECOND),
        ("largest", "largest movement of a coordinate", -0.5, extreme, _EXTREME),
        ("distance", "distance from the start", 0.0, 0.02, _SECOND),
    ):
        law = Expected(power, tolerance, "lecture 9, large width limit and lack of training", note)
        value, error = slope(name)
        table.append(law.row(f"{title}: exponent of the {words}", value, se=error))
    value, error = slope("from_newton")
    law = Expected(-0.5, 0.02, "lecture 9: the gradient changes by the order of p^(-1/2)", _SECOND)
    table.append(law.row(f"{title}: exponent of descent from Gauss-Newton", value, se=error))
    bound = Expected(1.0, 1e-9, "lecture 9: ‖J⁺(y − ŷ)‖ ≤ σ_min^(-1/2) ‖y − ŷ‖", exact=True, side="at most")
    table.append(bound.row(f"{title}: Gauss-Newton step over its bound", max(max(r["newton_bound"]) for r in swept)))
    return table


def _rate(title: str, widest: Result) -> Row:
    values = torch.tensor(widest["over_bound"], dtype=torch.float64)
    note = "the kernel changes by the order of p^(-1/2) at most"
    tolerance = 2 / math.sqrt(widest.settings["width"])
    least = Expected(1.0, tolerance, "loss contracts by ((κ − 1)/(κ + 1))²", note, exact=True, side="at least")
    se = float(values.std() / math.sqrt(len(values)))
    return least.row(f"{title}: rate of descent over that of the condition number", float(values.mean()), se=se)


def _exact_rows(title: str, result: Result) -> list[Row]:
    kappa = result["condition"]
    best = (kappa - 1) / (kappa + 1)
    known = {
        "library and closed forms agree": (0.0, result["agreement"], 1e-7, "autodiff against closed forms"),
        "contraction of linearized descent": (best, result["measured"], 1e-5, "(κ − 1)/(κ + 1)"),
        "linearized loss after a Gauss-Newton step": (0.0, result["newton_loss"], 1e-18, "lecture 9: J₀ of full rank"),
        "limit of descent from Gauss-Newton": (0.0, result["limit_from_newton"], 1e-6, "errata: nearest to θ₀"),
        # A change of κ by a share s changes the factor by 2s/κ, and s is of the order of p^(-1/2).
        "loss factor at the rate 1/σ_max": (
            (1 - 1 / kappa) ** 2,
            result["plain_rate"],
            4 / kappa / math.sqrt(result.settings["width"]),
            "(1 − 1/κ)² of the kernel at the start",
        ),
        "loss factor at a tenth of the best rate": (
            result["small_rate_predicted"],
            result["small_rate"],
            2e-3,
            "(1 − ασ_min)² of the kernel at the end",
        ),
        "gradient change over p⁻¹L²‖x‖⁴‖Δθ‖²": (1.0, result["gradient_change"]["right"], 1e-4, "errata"),
    }
    table = [
        Expected(value, tolerance, source, exact=True).row(f"{title}: {name}", ours)
        for name, (value, ours, tolerance, source) in known.items()
    ]
    shortest = Expected(1.0, 0.0, "lecture 9: minimizes ‖θ − θ₀‖ amongst all solutions", exact=True, side="at least")
    table.append(shortest.row(f"{title}: shortest of 100 other solutions", result["shortest_other"]))
    slow = Expected(best, 0.0, "lecture 9: if α < 2/(σ_max + σ_min)", side="at most")
    why = "the factor (κ − 1)/(κ + 1), and its square, need α = 2/(σ_max + σ_min); it tends to 1 for small steps"
    table.append(
        slow.row(f"{title}: loss factor at a tenth of the best rate, as printed", result["small_rate"], why=why)
    )
    printed = Expected(1.0, 0.0, "lecture 9: p⁻¹L‖x‖²‖Δθ‖²", side="at most")
    why = "the constant is L²‖x‖⁴: the square of L, and one more ‖x‖² from |(w − w')·x|"
    ours = result["gradient_change"]["printed"]
    return [*table, printed.row(f"{title}: gradient change over the bound as printed", ours, why=why)]


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Linearization error, change of the kernel and movement over the width."""
    figure = need("matplotlib.figure", extra="plot").Figure(figsize=(12, 4), layout="constrained")
    panels = (("error", "‖f − f_lin‖"), ("kernel", "‖K − K₀‖/‖K₀‖"), ("per_coordinate", "‖θ − θ₀‖/√dim"))
    for axes, (name, label) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for kind, title in KINDS.items():
            swept = [r for r in results if r.settings["kind"] == kind and not r.settings.get("checked")]
            widths = [r.settings["width"] for r in swept]
            means = [math.exp(sum(map(math.log, r[name])) / len(r[name])) for r in swept]
            axes.loglog(widths, means, "o-", label=title)
        axes.set(xlabel="width p", ylabel=label)
    axes.legend(fontsize="small")
    path = folder / "widths.png"
    figure.savefig(path, dpi=120)
    return [path]


RECIPE = Recipe(
    name="lazy-training",
    title="wide networks follow their linearization: by p^(-1/2), or by 1/p where signs cancel",
    paper="Tanner, Topology of the loss landscape: global and local structures, lecture 9 of Theories of Deep Learning "
    "(C6.5), Mathematical Institute, University of Oxford; slides on the linearization of the neural network",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="Two-layer networks p^(-1/2) Σ a_i φ(w_i·x) with GELU units, 8 examples with targets ±1 and inputs of length "
    "√d in 4 dimensions, are trained by gradient descent at the best rate of the kernel JJᵀ at the start.\n\n"
    "The lecture bounds the distance between network and linearization by a multiple of p^(-1/2). That is what happens "
    "when all output weights have one sign. With the random signs of the lecture itself the bound holds but is not "
    "reached: the second derivative along the path is p^(-3/2) Σ a_i³(...), a sum of p terms with random signs, and "
    "both the linearization error and the change of the kernel fall as 1/p; training the second layer too changes "
    "nothing in that. Each coordinate moves by the order of p^(-1/2) in all cases.\n\n"
    "Three statements of the slides do not hold as printed: the Lipschitz constant of the gradient (L²‖x‖⁴ for L‖x‖²), "
    "the loss factor (κ − 1)/(κ + 1) for every smaller step (it needs the best one, and is then its square), and the "
    "minimal ‖θ‖ of the limit of descent (it is ‖θ − θ₀‖ that is minimal).",
)
