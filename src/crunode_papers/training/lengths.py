"""The length of the direction that an optimizer goes, ‖Δw‖/lr, at little cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Lengths", "norm"]

_WIDE = (torch.float32, torch.float64)


class Lengths:
    """Measures ‖Δw‖/lr of the steps of an optimizer, over all parameter groups, each with its own rate.

    Weights are copied before a step and subtracted after it. On CPUs that costs a tenth of a step of a small network,
    so for `torch.optim.SGD`, whose direction is known from gradients and momentum, it is taken from those: ‖g‖ without
    momentum, ‖b‖ with it, and ‖g + μb‖ with Nesterov's, where b is the momentum buffer and μ its factor. Groups with
    rate zero do not count.

    Args:
        optimizer: The optimizer. Its groups and settings but the rates are taken to stay as they are now.

    Example:
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = torch.optim.SGD([w], lr=0.1)
        >>> lengths = Lengths(optimizer)
        >>> w.square().sum().backward()
        >>> lengths.before()
        >>> optimizer.step()
        >>> round(float(lengths.after()), 4)
        10.0
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._groups = optimizer, optimizer.param_groups
        self._known = _is_known(optimizer)
        self._copies = [
            [torch.empty_like(p, requires_grad=False) for p in group["params"]]
            for group in ([] if self._known else self._groups)
        ]
        self._rates: list[Any] = []

    def before(self) -> None:
        """To be called before each step."""
        self._rates = [group.get("lr", 1.0) for group in self._groups]
        for copies, group in zip(self._copies, () if self._known else self._groups, strict=True):
            torch._foreach_copy_(copies, group["params"])

    @torch.no_grad()
    def after(self, gradient: Tensor | None = None) -> Tensor:
        """To be called after each step, before gradients are cleared: the length, on the device of the weights.

        Args:
            gradient: ‖g‖ over all groups, where it is known.
        """
        lengths = []
        whole = gradient if len(self._groups) == 1 else None
        for k, (group, rate) in enumerate(zip(self._groups, self._rates, strict=True)):
            if not isinstance(rate, Tensor) and rate == 0:
                lengths.append(torch.zeros((), device=group["params"][0].device))
            elif self._known:
                lengths.append(_direction(group, self._optimizer.state, whole))
            else:
                torch._foreach_sub_(self._copies[k], group["params"])
                lengths.append(norm(self._copies[k]) / rate)
        return lengths[0] if len(lengths) == 1 else norm([torch.stack(lengths)])


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all numbers together.

    Example:
        >>> float(norm([torch.tensor([3.0]), torch.tensor([[4.0]])]))
        5.0
    """
    if _are_plain(tensors):  # products take half the time of norms
        return _product(tensors, tensors).sqrt()
    found: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))
    return found


def _product(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.dot(a.reshape(-1), b.reshape(-1)) for a, b in zip(one, other, strict=True)]).sum()


def _are_plain(tensors: Sequence[Tensor]) -> bool:
    return all(t.device.type == "cpu" and t.dtype in _WIDE and t.layout == torch.strided for t in tensors)


def _is_known(optimizer: Any) -> bool:
    """Whether the direction of a step can be had from gradients and momentum alone."""
    if type(optimizer) is not torch.optim.SGD:
        return False
    for group in optimizer.param_groups:
        decays = group["weight_decay"] and (group["nesterov"] or not group["momentum"])
        if group["maximize"] or decays or not _are_plain(group["params"]):
            return False
    return True


def _direction(group: dict[str, Any], state: Any, gradient: Tensor | None) -> Tensor:
    moved = [p for p in group["params"] if p.grad is not None]
    gradients = [p.grad for p in moved]
    if not moved:
        return torch.zeros(())
    momentum = group["momentum"]
    if not momentum:
        return norm(gradients) if gradient is None else gradient
    buffers = [state[p]["momentum_buffer"] for p in moved]
    if not group["nesterov"]:
        return norm(buffers)
    own = _product(gradients, gradients) if gradient is None else gradient.square()
    square: Tensor = own + 2 * momentum * _product(gradients, buffers) + momentum**2 * _product(buffers, buffers)
    return square.clamp(min=0).sqrt()
