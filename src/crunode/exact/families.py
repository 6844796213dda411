"""Models with a closed form of their own: regular ones, normal crossings, kernels, mixtures, topic models."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from crunode.errors import InputError
from crunode.exact.arguments import matrix, rational, sequence, whole, wholes
from crunode.exact.linear_networks import reduced_rank_value
from crunode.exact.rank import matrix_rank
from crunode.exact.result import LearningCoefficient

__all__ = [
    "gaussian_mixture_two_components",
    "interpolation_manifold",
    "lda",
    "linearised",
    "naive_bayes_binary",
    "normal_crossing",
    "regular",
    "tanh_zero_truth",
]


def regular(dim: Any) -> LearningCoefficient:
    """Coefficient of a regular model: λ = d/2, m = 1.

    Args:
        dim: Number d of parameters.

    Example:
        >>> print(regular(3))
        λ = 3/2, m = 1 (exact) [Schwarz 1978, Annals of Statistics 6:461]
    """
    d = whole(dim, "dim")
    return LearningCoefficient.exact(
        Fraction(d, 2),
        1,
        citation="Schwarz 1978, Annals of Statistics 6:461",
        hypotheses=("the Fisher information is positive definite at the one true parameter",),
    )


def normal_crossing(k: Any, h: Any = None) -> LearningCoefficient:
    """Coefficient of K(u) = Π u_j^(2k_j) at the origin under a prior density that behaves as Π |u_j|^(h_j).

    λ = min_j (h_j+1)/(2k_j) over the coordinates with k_j > 0, and m is how many of them attain it.

    Args:
        k: Half the exponents, whole numbers from 0 up, not all 0.
        h: Exponents of the prior, above −1; zeros when left out.

    Example:
        >>> print(normal_crossing([1, 1]))
        λ = 1/2, m = 2 (exact) [Watanabe 2009, ...]

    References:
        Watanabe 2009, Algebraic Geometry and Statistical Learning Theory; the least quotient, not the greatest.
    """
    powers = wholes(k, "k", low=0)
    if not any(powers):
        raise InputError("expected at least one exponent in k above 0, got none: K would not vanish at the origin")
    priors = [Fraction(0)] * len(powers)
    if h is not None:
        priors = [rational(x, f"h[{j}]") for j, x in enumerate(sequence(h, "h"))]
        if len(priors) != len(powers):
            raise InputError(f"expected as many exponents in h as in k, {len(powers)}, got {len(priors)}")
        if min(priors) <= -1:
            raise InputError(f"expected exponents h above −1, so that the prior is finite, got {min(priors)}")
    quotients = [(prior + 1) / (2 * power) for power, prior in zip(powers, priors, strict=True) if power]
    value = min(quotients)
    return LearningCoefficient.exact(
        value,
        quotients.count(value),
        citation="Watanabe 2009, Algebraic Geometry and Statistical Learning Theory (min over j, not max)",
        hypotheses=("the prior behaves as Π |u_j|^h_j at the origin",),
        details={"local": True},
    )


def linearised(jacobian_rows: Any) -> LearningCoefficient:
    """Coefficient of a model linearised in its parameters, as in the neural tangent kernel: half the rank.

    Args:
        jacobian_rows: The Jacobian of the outputs on the data, one row an output, one column a parameter. Whole numbers
            and Fractions are ranked exactly; with floats the rank is numerical and the status says so.

    Example:
        >>> print(linearised([[1, 2, 3], [2, 4, 6]]))
        λ = 1/2, m = 1 (exact) [Cullen 2026, theorem 5.1]

    References:
        Cullen 2026, theorem 5.1.
    """
    rows = [
        [rational(x, "jacobian_rows") if isinstance(x, str) else x for x in sequence(row, f"jacobian_rows[{i}]")]
        for i, row in enumerate(sequence(jacobian_rows, "jacobian_rows"))
    ]
    found = matrix_rank(matrix(rows, "jacobian_rows"))
    hypotheses = ["the truth is realised by the linearised model", "the loss is strictly convex in the outputs"]
    details = {"rank": found.rank, "exact_arithmetic": found.exact, "gap": found.gap}
    if found.rank is None:
        return LearningCoefficient.interval(
            Fraction(found.low, 2),
            Fraction(found.high, 2),
            citation="Cullen 2026, theorem 5.1",
            hypotheses=(*hypotheses, "the numerical rank is open between these bounds"),
            details=details,
        )
    if not found.exact:
        hypotheses.append(f"the rank is the numerical one (gap {found.gap:.1e} between pivots)")
    elif found.low != found.high:
        hypotheses.append("the rank modulo three large primes is the rank")
    return LearningCoefficient.exact(
        Fraction(found.rank, 2),
        1,
        citation="Cullen 2026, theorem 5.1",
        hypotheses=tuple(hypotheses),
        conditional=not found.exact or found.low != found.high,
        details=details,
    )


def interpolation_manifold(n_params: Any, n_data: Any, output_dim: Any) -> LearningCoefficient:
    """Local coefficient on the manifold of zero loss of an overparametrised model: λ = rm/2, m = 1.

    With d parameters, m examples and r outputs the manifold has dimension d − rm where the Jacobian has full row rank.

    Args:
        n_params: d, at least r·m.
        n_data: m.
        output_dim: r.

    Example:
        >>> print(interpolation_manifold(45, 10, 3))
        λ = 15, m = 1 (conditional) [Cooper 2021, ...]

    References:
        Cooper 2021, SIAM Journal on Mathematics of Data Science 3:676; the slides of Tanner print d − m for d − rm.
    """
    d, m, r = whole(n_params, "n_params"), whole(n_data, "n_data"), whole(output_dim, "output_dim")
    if d < r * m:
        raise InputError(
            f"expected at least output_dim · n_data = {r * m} parameters, so that the Jacobian can have full row rank, "
            f"got {d}"
        )
    return LearningCoefficient.exact(
        Fraction(r * m, 2),
        1,
        citation="Cooper 2021, SIAM Journal on Mathematics of Data Science 3:676 (dimension d − rm)",
        hypotheses=("the Jacobian of the outputs on the data has full row rank at the parameter", "zero loss there"),
        conditional=True,
        details={"manifold_dimension": d - r * m, "local": True},
    )


def tanh_zero_truth(hidden: Any) -> LearningCoefficient:
    """Global coefficient of x ↦ Σ_j a_j tanh(b_j x) with one input and output when the truth is zero.

    λ = (H + i + i²)/(4i + 2) with i = ⌊√H⌋; m = 2 where H = i², else 1.

    Args:
        hidden: H.

    Example:
        >>> print(tanh_zero_truth(4))
        λ = 1, m = 2 (exact) [Aoyagi & Watanabe 2005, IEICE J88-D-II:2112]
    """
    units = whole(hidden, "hidden")
    i = math.isqrt(units)
    return LearningCoefficient.exact(
        Fraction(units + i + i * i, 4 * i + 2),
        2 if i * i == units else 1,
        citation="Aoyagi & Watanabe 2005, IEICE J88-D-II:2112",
        hypotheses=("one input, one output, no biases", "the true function is zero", "squared error, unit noise"),
    )


def gaussian_mixture_two_components(dim: Any) -> LearningCoefficient:
    """Global coefficient of a mixture of two unit Gaussians when the truth is one Gaussian.

    λ = d/2 + min(1/2, d/4), m = 2 for d = 2, else 1: the mean is regular, and what is left behaves as α²‖b‖⁴.

    Args:
        dim: Dimension d of the data.

    Example:
        >>> print(gaussian_mixture_two_components(1))
        λ = 3/4, m = 1 (exact) [Yamazaki & Watanabe 2003, ...]
    """
    d = whole(dim, "dim")
    return LearningCoefficient.exact(
        Fraction(d, 2) + min(Fraction(1, 2), Fraction(d, 4)),
        2 if d == 2 else 1,
        citation="Yamazaki & Watanabe 2003, Neural Networks 16:1029 (d = 1); the same argument in d dimensions",
        hypotheses=(
            "both components have unit covariance; mixing weight and both means are free",
            "the truth is one unit Gaussian",
            "the prior is positive at the true parameters",
        ),
    )


def naive_bayes_binary(features: Any, truth: Any = "independent") -> LearningCoefficient:
    """Global coefficient of naive Bayes with a hidden binary class and n binary features that are independent in truth.

    λ = (n+1)/2, m = 1 for n ≥ 3; λ = 3/2, m = 3 for n = 2; λ = 1/2, m = 1 for n = 1, where one free probability is all
    there is to learn.

    Args:
        features: n.
        truth: "independent" is what the theorem covers here.

    Example:
        >>> print(naive_bayes_binary(2))
        λ = 3/2, m = 3 (exact) [Rusakov & Geiger 2005, JMLR 6:1, theorem 4]
    """
    n = whole(features, "features")
    if truth != "independent":
        raise InputError(f'expected truth as "independent", the case covered here, got {truth!r}')
    value, multiplicity = {1: (Fraction(1, 2), 1), 2: (Fraction(3, 2), 3)}.get(n, (Fraction(n + 1, 2), 1))
    return LearningCoefficient.exact(
        value,
        multiplicity,
        citation="Rusakov & Geiger 2005, JMLR 6:1, theorem 4",
        hypotheses=(
            "the features are independent in truth, with probabilities inside (0, 1)",
            "the prior is positive and bounded on the whole cube of parameters",
        ),
    )


def lda(vocab: Any, docs: Any, topics: Any, rank: Any) -> LearningCoefficient:
    """Global coefficient of latent Dirichlet allocation, or of the factorisation of a stochastic matrix.

    λ = (M−1)/2 + λ_RRR(N−1, M−1, H−1; r−1), with that part's multiplicity: M words, N documents, H topics.

    Args:
        vocab: M.
        docs: N.
        topics: H.
        rank: r, the rank of the true matrix of word probabilities by document, from 1 up.

    Example:
        >>> print(lda(vocab=5, docs=6, topics=3, rank=2))
        λ = 15/2, m = 1 (exact) [Hayashi 2021, Neural Networks 137:127]
    """
    m, n, h = whole(vocab, "vocab"), whole(docs, "docs"), whole(topics, "topics")
    r = whole(rank, "rank")
    if r > min(m, n, h):
        raise InputError(f"expected a rank from 1 to the least of vocab, docs and topics, {min(m, n, h)}, got {r}")
    core, multiplicity = reduced_rank_value(n - 1, m - 1, h - 1, r - 1)
    return LearningCoefficient.exact(
        Fraction(m - 1, 2) + core,
        multiplicity,
        citation="Hayashi 2021, Neural Networks 137:127",
        hypotheses=(
            "all true probabilities are positive (the truth lies inside)",
            "the prior is positive and bounded at the true parameters",
        ),
    )
