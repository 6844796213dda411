"""Modular arithmetic as data: all pairs (a, b), what comes out, and which of them are for training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crunode import InputError
from crunode.core import derived_seed

__all__ = ["OPERATIONS", "ModularTask", "check_seed", "check_whole"]

OPERATIONS = ("addition", "subtraction", "multiplication", "division")
"""What can be done with a pair."""

_INPUTS, _TARGETS = ("one-hot", "tokens"), ("one-hot", "classes")


@dataclass(frozen=True)
class ModularTask:
    """The table of c = a ∘ b mod p, split at random into training and validation pairs.

    Addition, subtraction and multiplication have all p² pairs. Division c = a·b⁻¹ mod p has the p(p−1) pairs with
    b ≠ 0, and needs a prime p. Of M pairs, N = ⌊fraction·M⌋ are drawn without replacement for training (section 3.1 of
    the paper, which has addition and does not say how N is rounded); the other M − N validate.

    Attributes:
        modulus: p, from 2 up.
        operation: One of `OPERATIONS`.
        fraction: Part of the pairs to train on.
        seed: The split comes from it.

    Raises:
        InputError: There is no such operation, p is not prime where division needs it, or a part would have no pairs.

    Example:
        >>> task = ModularTask(5, "division", fraction=0.5)
        >>> len(task.pairs), len(task.training), len(task.validation)
        (20, 10, 10)
        >>> a, b = task.pairs[7]
        >>> bool((task.results[7] * b - a) % 5 == 0)
        True
        >>> inputs, targets = task.data("training")
        >>> tuple(inputs.shape), tuple(targets.shape)
        ((10, 10), (10, 5))

    References:
        Cullen 2026, section 3.1; Power et al. 2022 (the other operations).
    """

    modulus: int
    operation: str = "addition"
    fraction: float = 0.4
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self.modulus, "modulus", low=2)
        check_seed(self.seed)
        if self.operation not in OPERATIONS:
            raise InputError(f"expected operation among {', '.join(OPERATIONS)}, got {self.operation!r}")
        if self.operation == "division" and not _is_prime(self.modulus):
            raise InputError(
                f"expected a prime modulus for division, got {self.modulus}; take a prime, or multiplication"
            )
        if isinstance(self.fraction, bool) or not isinstance(self.fraction, int | float):
            raise InputError(f"expected fraction as a number between 0 and 1, got {self.fraction!r}")
        total = self.modulus * (self.modulus - (self.operation == "division"))
        if not 0 < self.fraction < 1 or not 1 <= self._count(total) < total:
            raise InputError(
                f"expected a fraction that leaves training and validation pairs, got {self.fraction!r} of {total} "
                f"pairs; take one from {1 / total:.4g} up and below 1"
            )

    def _count(self, total: int) -> int:
        return math.floor(self.fraction * total + 1e-9)  # 0.7 · 30 is 20.999999999999996

    @cached_property
    def pairs(self) -> Tensor:
        """All pairs (a, b), shape (M, 2)."""
        residues = torch.arange(self.modulus)
        return torch.cartesian_prod(residues, residues[1:] if self.operation == "division" else residues)

    @cached_property
    def results(self) -> Tensor:
        """The result c of each pair, shape (M,)."""
        a, b = self.pairs.unbind(1)
        p = self.modulus
        if self.operation == "addition":
            return (a + b) % p
        if self.operation == "subtraction":
            return (a - b) % p
        if self.operation == "division":
            b = torch.tensor([0] + [pow(x, -1, p) for x in range(1, p)])[b]
        return a * b % p

    @cached_property
    def _order(self) -> Tensor:
        generator = torch.Generator().manual_seed(derived_seed(self.seed, self.modulus))
        return torch.randperm(len(self.pairs), generator=generator)

    @property
    def training(self) -> Tensor:
        """Positions of the training pairs in `pairs`, ascending."""
        return self._order[: self._count(len(self.pairs))].sort().values

    @property
    def validation(self) -> Tensor:
        """Positions of the validation pairs, ascending."""
        return self._order[self._count(len(self.pairs)) :].sort().values

    def data(
        self,
        part: str = "training",
        *,
        inputs: str = "one-hot",
        targets: str = "one-hot",
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a part.

        Args:
            part: "training", "validation" or "all".
            inputs: "one-hot" for rows [e_a; e_b] of length 2p, "tokens" for (a, b) as whole numbers.
            targets: "one-hot" for rows e_c of length p, "classes" for c.
            dtype: Of one-hot rows.
        """
        parts = {"training": self.training, "validation": self.validation, "all": torch.arange(len(self.pairs))}
        _choose(part, tuple(parts), "part")
        _choose(inputs, _INPUTS, "inputs")
        _choose(targets, _TARGETS, "targets")
        pairs, results = self.pairs[parts[part]], self.results[parts[part]]
        x = one_hot_pairs(pairs, self.modulus).to(dtype) if inputs == "one-hot" else pairs
        y = F.one_hot(results, self.modulus).to(dtype) if targets == "one-hot" else results
        return x, y


def one_hot_pairs(pairs: Tensor, modulus: int) -> Tensor:
    """Rows [e_a; e_b] of pairs (a, b)."""
    return F.one_hot(pairs, modulus).flatten(-2)


def check_whole(value: Any, name: str, low: int = 1) -> None:
    """Refuse anything but a whole number from `low` up.

    Example:
        >>> check_whole(0, "width")
        Traceback (most recent call last):
        crunode.errors.InputError: expected width as a whole number from 1 up, got 0
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InputError(f"expected {name} as a whole number from {low} up, got {value!r}")


def check_seed(seed: Any) -> None:
    """Refuse anything but a whole number from 0 up.

    Example:
        >>> check_seed(3)
    """
    check_whole(seed, "seed", low=0)


def _choose(value: Any, known: tuple[str, ...], name: str) -> None:
    if value not in known:
        raise InputError(f"expected {name} among {', '.join(known)}, got {value!r}")


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % k for k in range(2, math.isqrt(number) + 1))
