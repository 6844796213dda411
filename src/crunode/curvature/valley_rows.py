"""As few examples as show the whole rank of the Jacobian of the outputs, and how it is held on them.

A rank is looked at on examples that are enough when others show nothing that these do not, at a generic point and at
the center. With matrices while these are small, made from the factors of the rows of J where all layers are linear,
otherwise by products with vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.curvature.jacobian import Evaluation
from crunode.curvature.krylov import KrylovMap
from crunode.curvature.layered import LayeredMap
from crunode.curvature.outputs import DenseMap, OutputMap, Random, dense_rows

__all__ = ["BAND", "CUT", "Rows", "enough_rows"]

# Relative singular values above this count: below, weights rounded to single precision are not told from zero.
CUT, BAND = 1e-5, 10.0
# Other examples to check by, at least.
_OTHERS = 64
# Rows up to which matrices are factorised at each step on a processor; above, conjugate gradients are faster.
# The latter where factors by layers do without J: steps by conjugate gradients do not always arrive.
_FEW_ROWS, _MORE_ROWS = 2500, 4500
# Outputs of an example from which on factors of the rows of J by layers are faster than J there.
_WIDE = 8
# Examples to begin with: in large models finding out that fewer are not enough takes as long as to use these.
_MANY, _FIRST, _FEW = 200_000, 1024, 16


@dataclass
class Rows:
    """The outputs to look at, others to check them by, and the rank of J at a generic point."""

    outputs: OutputMap
    others: OutputMap | None
    rank: float
    doubt: float
    gradients: int


def enough_rows(
    land: Landscape, seen: Evaluation, generic: Tensor, order: Tensor, random: Random, krylov: bool | None
) -> Rows:
    """The outputs on as few examples as show the whole rank at a generic point.

    Args:
        land: The landscape.
        seen: Its outputs.
        generic: The point.
        order: All examples, in the order to take them in.
        random: Gives random vectors.
        krylov: Without matrices; None decides by their size.

    Example:
        >>> import torch
        >>> from crunode.examples.toys import reduced_rank
        >>> land, chance = reduced_rank(4, 3, 4, rank=3), torch.Generator().manual_seed(0)
        >>> def random(size):
        ...     return torch.randn(size, generator=chance, dtype=torch.float64)
        >>> seen = Evaluation(land)
        >>> found = enough_rows(land, seen, seen.center, torch.randperm(land.n, generator=chance), random, None)
        >>> found.rank, found.outputs.examples < 20
        (15.0, True)
    """
    width, count = seen.outputs_per_example(), land.data.rows
    most = dense_rows(land) if krylov is None else 0 if krylov else 1 << 40
    step, spent = random(land.dim), 0
    by_layers = width >= _WIDE and land.device.type == "cpu" and LayeredMap(seen, order[:2].sort().values).by_layers()

    def held(examples: int) -> bool:
        """Whether matrices are factorised."""
        rows = examples * width
        if by_layers and krylov is None:  # J itself is not needed
            return rows <= _MORE_ROWS
        return rows <= (most if land.device.type == "cuda" else min(most, _FEW_ROWS))

    def chosen(examples: int) -> tuple[OutputMap, OutputMap | None, bool]:
        """Outputs on that many examples, on others, and whether the others show nothing more."""
        nonlocal spent
        bar.advance(1, f"{examples} examples")
        part = order[:examples].sort().values
        outputs: OutputMap
        if held(examples):
            outputs = (LayeredMap if by_layers else DenseMap)(seen, part)
        else:
            outputs = KrylovMap(seen, part, exact=examples * width <= most)
        more = order[examples : examples + max(examples, _OTHERS)]
        if not len(more):
            return outputs, None, True
        others = OutputMap(seen, more.sort().values)
        # At the center too: there some may show less, as where units are at rest.
        enough = all(outputs.at(w).misses(others, step) <= outputs.missed for w in (generic, seen.center))
        spent += outputs.gradients + others.gradients * others.examples // outputs.examples
        outputs.gradients = others.gradients = 0
        return outputs, others, enough

    examples, low = min(count, max(_FIRST if land.dim > _MANY else _FEW, math.ceil(64 / width))), 0
    with Progress(None, "how many examples show the rank") as bar:
        outputs, others, enough = chosen(examples)
        while not enough:
            low, examples = examples, min(count, 2 * examples)
            middle = (low + examples) // 2
            if held(middle) and middle > low:
                # These are looked at anyway, and more are enough where these are.
                outputs, others, enough = chosen(middle)
                low, examples = (low, middle) if enough else (middle, examples)
            if not enough:
                outputs, others, enough = chosen(examples)
        while examples - low > max(1, examples // (16 if land.dim <= _MANY else 4)):
            middle = (low + examples) // 2
            fewer = chosen(middle)
            if fewer[2]:
                (outputs, others, _), examples = fewer, middle
            else:
                low = middle
    rank, doubt = outputs.at(generic).rank(CUT, BAND, random)
    return Rows(outputs, others, rank, doubt, spent)
