"""Linear networks: deep linear, reduced rank regression (global and local), and three-layer ReLU with fixed regions.

A *global* coefficient is that of the model: the least over all parameters that realise the truth. A *local* one belongs
to one of these parameters, is never below it, and has `local` in the name of its function.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from crunode.errors import InputError
from crunode.exact.arguments import flag, sequence, whole, wholes
from crunode.exact.result import LearningCoefficient

__all__ = [
    "deep_linear",
    "deep_linear_depth_limit",
    "reduced_rank",
    "reduced_rank_local",
    "reduced_rank_value",
    "relu_three_layer",
]

_LINEAR = (
    "the truth is a linear map of the given rank",
    "the inputs have a covariance matrix of full rank",
    "squared error, unit noise",
    "the prior is positive at the true parameters",
)
_DEEP = "Aoyagi 2024, Neural Networks 172:106132, theorem 2 (with /4 where the survey of Seyoum 2025 prints /(4ℓ))"


def deep_linear(widths: Any, rank: Any, bias: Any = False) -> LearningCoefficient:
    """Global coefficient of a deep linear network, x ↦ A_1 A_2 ⋯ A_L x.

    Let M_s = H_s − r, sorted m_0 ≤ … ≤ m_L; ℓ the largest l ≥ 1 with Σ_{j≤l} m_j ≥ l·m_l; S = Σ_{j≤ℓ} m_j,
    M = ⌈S/ℓ⌉ and a = S − (M−1)ℓ. Then λ = [r(H_1+H_{L+1}) − r²]/2 + [M a + (M−1) S − Σ_{j≤ℓ} m_j²]/4 and
    m = a(ℓ−a) + 1. Where some M_s is 0 the second part is 0 and m = 1. Biases add H_1/2: all of them act as one at the
    output.

    Args:
        widths: Widths from output to input (the order of hidden ones does not matter), at least two of them.
        rank: Rank r of the true map.
        bias: True when the layers have biases.

    Example:
        >>> print(deep_linear([2, 2, 2, 2, 2], rank=0))
        λ = 3/2, m = 5 (exact) [Aoyagi 2024, ...]

    References:
        Aoyagi 2024, Neural Networks 172:106132; with biases Aoyagi 2025, arXiv:2501.12747, theorem 4.
    """
    widths, r = _network(widths, rank)
    core, multiplicity, used = _product([width - r for width in widths])
    value = Fraction(r * (widths[0] + widths[-1]) - r * r, 2) + core
    citation = _DEEP
    if flag(bias, "bias"):
        value += Fraction(widths[0], 2)
        citation = "Aoyagi 2025, arXiv:2501.12747, theorem 4, on " + _DEEP
    return LearningCoefficient.exact(
        value, multiplicity, citation=citation, hypotheses=_LINEAR, details={"widths_that_count": used + 1}
    )


def deep_linear_depth_limit(
    in_dim: Any, hidden: Any, out_dim: Any, *, rank: Any, bias: Any = False
) -> LearningCoefficient:
    """Global coefficient of a deep linear network as its depth grows with all hidden widths equal.

    With c = H − r, p = H_out − r, q = H_in − r, let A be those of p, q that are below c, σ their sum, k their number
    and δ = σ − (k−1)c. For large depth ℓ counts the widths of A and all hidden ones, so S = cℓ + δ, and for 0 < δ ≤ ℓ
    the part of λ beyond [r(H_in+H_out) − r²]/2 is [(2c+1)δ + (k−1)c² − Σ_A m²]/4, free of the depth; for p, q ≥ c it is
    c(c+1)/4. For δ ≤ 0 it is pq/2, so that λ is that of linear regression; where c, p or q is 0 it is 0. So λ reaches
    its limit at a finite depth, while m = δ(ℓ−δ) + 1 grows linearly with the depth for δ > 0.

    Args:
        in_dim: Input width.
        hidden: Width H of every hidden layer.
        out_dim: Output width.
        rank: Rank r of the true map.
        bias: True when the layers have biases.

    Returns:
        The limit of λ. The multiplicity is None where it grows without bound; details hold `from_depth`, a number of
        weight matrices from which λ is at its limit, and `multiplicity_per_layer`.

    Example:
        >>> found = deep_linear_depth_limit(5, 3, 5, rank=1)
        >>> found.value, found.details["multiplicity_per_layer"]
        (Fraction(6, 1), 2)

    References:
        The formula of Aoyagi 2024, Neural Networks 172:106132, at large depth.
    """
    widths = [whole(out_dim, "out_dim"), whole(hidden, "hidden"), whole(in_dim, "in_dim")]
    widths, r = _network(widths, rank)
    p, c, q = (width - r for width in widths)
    small = [m for m in (p, q) if m < c]
    delta = sum(small) - (len(small) - 1) * c
    if min(p, c, q) == 0 or delta <= 0:
        core, delta, depth = Fraction(p * q if c else 0, 2), 0, 2
    else:
        core = Fraction((2 * c + 1) * delta + (len(small) - 1) * c * c - sum(m * m for m in small), 4)
        # Wider ends drop out once N hidden widths satisfy N(w − c) > σ − (k−1)w, and ℓ = k + N − 1 has to reach δ.
        hidden_layers = max(1, delta + 1 - len(small))
        for wide in (m for m in (p, q) if m > c):
            hidden_layers = max(hidden_layers, (sum(small) - (len(small) - 1) * wide) // (wide - c) + 1)
        depth = hidden_layers + 1
    value = Fraction(r * (widths[0] + widths[-1]) - r * r, 2) + core
    if flag(bias, "bias"):
        value += Fraction(widths[0], 2)
    return LearningCoefficient.exact(
        value,
        None if delta else 1,
        citation=f"limit of {_DEEP}",
        hypotheses=(*_LINEAR, f"at least {depth} weight matrices"),
        details={"from_depth": depth, "multiplicity_per_layer": delta},
    )


def reduced_rank(in_dim: Any, hidden: Any, out_dim: Any, *, rank: Any) -> LearningCoefficient:
    """Global coefficient of reduced rank regression, the two-layer linear network x ↦ B A x.

    For in-dimension M, out-dimension N, hidden width H and true rank r: (1) if N+r ≤ M+H, M+r ≤ N+H and H+r ≤ M+N, with
    v = −(H+r)² − M² − N² + 2(H+r)(M+N) + 2MN, λ = v/8 and m = 1 where M+N+H+r is even, λ = (v+1)/8 and m = 2 where it
    is odd; (2) if M+H < N+r, λ = (HM − Hr + Nr)/2; (3) if N+H < M+r, λ = (HN − Hr + Mr)/2; (4) if M+N < H+r,
    λ = MN/2; m = 1 in these three.

    Args:
        in_dim: M.
        hidden: H.
        out_dim: N.
        rank: r, from 0 to the smallest width.

    Example:
        >>> print(reduced_rank(6, 4, 6, rank=2))
        λ = 27/2, m = 1 (exact) [Aoyagi & Watanabe 2005, Neural Networks 18:924]

    References:
        Aoyagi & Watanabe 2005, Neural Networks 18:924.
    """
    widths = [whole(in_dim, "in_dim"), whole(hidden, "hidden"), whole(out_dim, "out_dim")]
    (m, h, n), r = _network(widths, rank)
    value, multiplicity = reduced_rank_value(m, n, h, r)
    return LearningCoefficient.exact(
        value, multiplicity, citation="Aoyagi & Watanabe 2005, Neural Networks 18:924", hypotheses=_LINEAR
    )


def reduced_rank_local(
    in_dim: Any, hidden: Any, out_dim: Any, *, rank: Any, rank_out_factor: Any, rank_in_factor: Any
) -> LearningCoefficient:
    """Local coefficient of reduced rank regression where the factors have given ranks.

    At B of rank b and A of rank a with B A of rank r: λ = [bM + (N−b)a]/2 + λ_RRR(M−a, N−b, H−a−b+r; rank 0), with that
    part's multiplicity. The first part is half the rank of the Jacobian. It can exceed the global coefficient: for
    2 × 2 × 2 with r = 0, B = 0 and A = I it is 2, and the global one 3/2.

    Args:
        in_dim: M.
        hidden: H.
        out_dim: N.
        rank: r, the rank of B A.
        rank_out_factor: b, the rank of B.
        rank_in_factor: a, the rank of A.

    Example:
        >>> reduced_rank_local(2, 2, 2, rank=0, rank_out_factor=0, rank_in_factor=2).value
        Fraction(2, 1)
        >>> reduced_rank(2, 2, 2, rank=0).value
        Fraction(3, 2)

    References:
        Aoyagi & Watanabe 2005, Neural Networks 18:924, after a change of coordinates at the parameter.
    """
    widths = [whole(in_dim, "in_dim"), whole(hidden, "hidden"), whole(out_dim, "out_dim")]
    (m, h, n), r = _network(widths, rank)
    b, a = whole(rank_out_factor, "rank_out_factor", 0), whole(rank_in_factor, "rank_in_factor", 0)
    if b > min(n, h) or a > min(m, h):
        raise InputError(f"expected ranks of the factors up to {min(n, h)} (out) and {min(m, h)} (in), got {b} and {a}")
    if not max(0, a + b - h) <= r <= min(a, b):
        raise InputError(
            f"expected the rank of the product between {max(0, a + b - h)} and {min(a, b)}, as factors of ranks {b} "
            f"(out) and {a} (in) over hidden width {h} have it, got {r}"
        )
    core, multiplicity = reduced_rank_value(m - a, n - b, h - a - b + r, 0)
    jacobian = b * m + (n - b) * a
    return LearningCoefficient.exact(
        Fraction(jacobian, 2) + core,
        multiplicity,
        citation="Aoyagi & Watanabe 2005, Neural Networks 18:924, in local coordinates at the parameter",
        hypotheses=(*_LINEAR, "the factors have the given ranks at the parameter"),
        details={"jacobian_rank": jacobian, "local": True},
    )


def relu_three_layer(input_dim: Any, groups: Any) -> LearningCoefficient:
    """Coefficient of a three-layer ReLU network while its activation regions stay fixed.

    Hidden units that are active on the same region form a group: H2_i units that reach H1_i outputs with a map of rank
    r_i. Each group is a linear network with the bias as one more input, so λ = Σ_i λ(H1_i, H2_i, H3+1; r_i) and
    m − 1 = Σ_i (m_i − 1).

    The status is `conditional`: regions move with the parameters. Where two units share a kink, K ~ δ² + ε³ gives 4/3
    and this formula says 1.

    Args:
        input_dim: H3, the number of inputs.
        groups: For each group a mapping with `outputs`, `hidden` and `rank`.

    Example:
        >>> print(relu_three_layer(1, [{"outputs": 1, "hidden": 1, "rank": 1}]))
        λ = 1, m = 1 (conditional) [Aoyagi 2025, ...]

    References:
        Aoyagi 2025, arXiv:2501.12747, theorem 6.
    """
    inputs = whole(input_dim, "input_dim")
    value, multiplicity = Fraction(0), 1
    for i, group in enumerate(sequence(groups, "groups")):
        keys = {"outputs", "hidden", "rank"}
        if not isinstance(group, Mapping) or set(group) != keys:
            raise InputError(f"expected groups[{i}] with outputs, hidden and rank, got {group!r}")
        try:
            part = deep_linear([group["outputs"], group["hidden"], inputs + 1], group["rank"])
        except InputError as error:
            raise InputError(f"groups[{i}]: {error}") from None
        value += part.bounds[0]
        multiplicity += (part.multiplicity or 1) - 1
    return LearningCoefficient.exact(
        value,
        multiplicity,
        citation="Aoyagi 2025, arXiv:2501.12747, theorem 6",
        hypotheses=(
            "the activation regions of all units stay fixed near the parameter; no two units share a kink",
            "the groups are active on regions of their own",
            *_LINEAR[1:],
        ),
        conditional=True,
    )


def reduced_rank_value(m: int, n: int, h: int, r: int) -> tuple[Fraction, int]:
    """λ and m of reduced rank regression with in M, out N, hidden H and rank r; widths may be 0.

    Example:
        >>> reduced_rank_value(3, 3, 2, 1)
        (Fraction(7, 2), 2)
    """
    if m + h < n + r:
        return Fraction(h * m - h * r + n * r, 2), 1
    if n + h < m + r:
        return Fraction(h * n - h * r + m * r, 2), 1
    if m + n < h + r:
        return Fraction(m * n, 2), 1
    v = 2 * (h + r) * (m + n) + 2 * m * n - (h + r) ** 2 - m * m - n * n
    odd = (m + n + h + r) % 2
    return Fraction(v + odd, 8), 1 + odd


def _network(widths: Any, rank: Any) -> tuple[list[int], int]:
    found = wholes(widths, "widths")
    if len(found) < 2:
        raise InputError(f"expected at least two widths, those of output and input, got {len(found)}")
    r = whole(rank, "rank", low=0)
    if r > min(found):
        raise InputError(f"expected a rank from 0 to the smallest width, {min(found)}, got {r}")
    return found, r


def _product(excess: list[int]) -> tuple[Fraction, int, int]:
    """λ, m and ℓ of a product of matrices at zero, with excess widths M_s."""
    ordered = sorted(excess)
    if not ordered[0]:
        return Fraction(0), 1, 0
    total, used = ordered[0] + ordered[1], 1
    while used + 1 < len(ordered) and total + ordered[used + 1] >= (used + 1) * ordered[used + 1]:
        used += 1
        total += ordered[used]
    ceiling = -(-total // used)
    a = total - (ceiling - 1) * used
    squares = sum(m * m for m in ordered[: used + 1])
    return Fraction(ceiling * a + (ceiling - 1) * total - squares, 4), a * (used - a) + 1, used
