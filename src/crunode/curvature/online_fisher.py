"""The online low-rank natural gradient, tensor by tensor and axis by axis.

Rows x of a gradient, along one axis of a tensor, have a second moment that is followed as F = RᵀDR + ρI with few
orthonormal rows R. With T = ηS + (1 − η)F, where S = XᵀX/N is the second moment of the present gradient, one step of
subspace iteration RT = U C^½ R' gives the next rows R' with D' = C^½ − ρ'I, and ρ' keeps the trace: tr F' = tr T. The
gradient is multiplied by (F + (α/D) tr F I)⁻¹ and scaled back to the norm it had. So it is turned, never lengthened.

References:
    Povey, Zhang & Khudanpur 2015, "Parallel training of DNNs with natural gradient and parameter averaging", appendix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["OnlineFisher", "online_direction"]

# As published: the weight of the present gradient, the least eigenvalue relative to the largest, the largest rank,
# updates with the first gradient, steps at the beginning that all update, and after how many the others do.
_ETA, _DELTA, _RANK = 0.1, 5e-4, 80
_FIRST, _BEGINNING, _PERIOD = 3, 10, 4


class OnlineFisher:
    """F of one axis, and what it makes of gradients.

    Args:
        size: D, the length of the axis; at least 2.
        alpha: α.
        epsilon: ε, the least value of ρ and of the entries of D; so tr F ≥ ε, as max(tr F, ε) in the smoothing wants.
        state: What `state` of another one was, to go on from there.

    Attributes:
        state: Everything that changes: "rows" R, "values" the diagonal of D, "rest" ρ, and "steps".

    Example:
        >>> fisher = OnlineFisher(4, alpha=1e-2, epsilon=1e-10)
        >>> gradient = torch.diag(torch.tensor([4.0, 2.0, 1.0, 0.5]))
        >>> turned = fisher.precondition(gradient)
        >>> bool(torch.isclose(turned.norm(), gradient.norm()))
        True
        >>> bool(turned[0, 0] / turned[3, 3] < 4.0 / 0.5)
        True
    """

    def __init__(self, size: int, *, alpha: float, epsilon: float, state: dict[str, Any] | None = None) -> None:
        self._size, self._alpha, self._epsilon = size, alpha, epsilon
        self.state: dict[str, Any] = {} if state is None else state

    def precondition(self, rows: Tensor) -> Tensor:
        """X(F + (α/D) tr F I)⁻¹ with the norm of X, for X with D columns; F is updated when its time is there."""
        if not self.state:
            self._begin(rows)
            for _ in range(_FIRST):
                self._update(rows)
        found = self._applied(rows)
        if self.state["steps"] < _BEGINNING or self.state["steps"] % _PERIOD == 0:
            self._update(rows)
        self.state["steps"] += 1
        size, length = rows.norm(), found.norm()
        return found * torch.where(length > 0, size / length, torch.ones_like(size))

    def dense(self) -> Tensor:
        """F as a matrix."""
        rows, values, rest = (self.state[key] for key in ("rows", "values", "rest"))
        eye = torch.eye(self._size, dtype=rows.dtype, device=rows.device)
        return torch.add(rows.T @ (values[:, None] * rows), rest * eye)

    def _begin(self, given: Tensor) -> None:
        """Rows that touch every coordinate once; not all of one size, so that none of them misses a sum of zero."""
        rank = min((self._size + 1) // 2, _RANK)
        index = torch.arange(self._size, device=given.device)
        rows = given.new_zeros(rank, self._size)
        rows[index % rank, index] = torch.where(index < rank, 1.1, 1.0).to(given.dtype)
        self.state["rows"] = rows / rows.norm(dim=1, keepdim=True)
        self.state["values"] = given.new_full((rank,), self._epsilon)
        self.state["rest"], self.state["steps"] = self._epsilon, 0

    def _applied(self, given: Tensor) -> Tensor:
        rows, values, rest = self.state["rows"], self.state["values"], self.state["rest"]
        beta = rest + self._alpha / self._size * (self._size * rest + float(values.sum()))
        # (RᵀDR + βI)⁻¹ = (I − Rᵀ D/(D + β) R)/β, and the factor 1/β goes when the norm is restored.
        return given.sub((given @ rows.T) * (values / (values + beta)) @ rows)

    def _update(self, given: Tensor) -> None:
        rows, values, rest = self.state["rows"].double(), self.state["values"].double(), self.state["rest"]
        rank, size, wide = len(rows), self._size, given.double()
        moved = _ETA / len(wide) * (wide @ rows.T).T @ wide + (1 - _ETA) * (values + rest)[:, None] * rows
        # As singular values, not as eigenvalues of the square: the rows stay orthonormal whatever the condition. Those
        # of the small factor are found on the processor, ten times as fast as a graphics card does.
        basis, factor = torch.linalg.qr(moved.T)
        _, roots, turned = torch.linalg.svd(factor.T.cpu())
        roots, turned = roots.to(moved.device), turned.to(moved.device) @ basis.T
        roots = roots.clamp(min=(1 - _ETA) * rest)
        trace = _ETA / len(wide) * float(wide.square().sum())
        trace += (1 - _ETA) * (size * rest + float(values.sum()))
        left = (trace - float(roots.sum())) / (size - rank)
        least = max(self._epsilon, _DELTA * float(roots[0]))
        self.state["rows"] = turned.to(given.dtype)
        self.state["values"] = (roots - left).clamp(min=least).to(given.dtype)
        self.state["rest"] = max(left, least)


def online_direction(gradient: Tensor, states: list[dict[str, Any]], *, alpha: float, epsilon: float) -> Tensor:
    """The gradient of one tensor, turned along one axis after the other.

    Args:
        gradient: The gradient.
        states: One dictionary for each axis, empty at first; they are updated.
        alpha: Smoothing of F along an axis of length D: (α/D) tr F is added to its diagonal.
        epsilon: The least eigenvalue.

    Returns:
        A tensor of the same shape and norm.

    Example:
        >>> gradient = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.2, 0.1]])
        >>> turned = online_direction(gradient, [{}, {}], alpha=0.1, epsilon=1e-10)
        >>> bool(torch.isclose(turned.norm(), gradient.norm())), bool(turned[0, 0] < 3.0)
        (True, True)
    """
    for axis, state in enumerate(states):
        size = gradient.shape[axis]
        if size > 1:
            fisher = OnlineFisher(size, alpha=alpha, epsilon=epsilon, state=state)
            last = gradient.movedim(axis, -1)
            turned = fisher.precondition(last.reshape(-1, size))
            gradient = turned.reshape(last.shape).movedim(-1, axis)
    return gradient
