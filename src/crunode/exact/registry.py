"""Families by name: `evaluate` finds the theorem for a family and its parameters, `catalog` lists what there is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crunode.errors import InputError
from crunode.exact.result import LearningCoefficient

__all__ = ["Family", "catalog", "evaluate", "family_named"]


@dataclass(frozen=True)
class Family:
    """A model family with a theorem.

    Attributes:
        name: As `evaluate` takes it.
        scope: "global", "local", or "either" where the parameters decide.
        theorem: The formula in words.
        citation: Where it is published.
        parameters: Name and meaning of each parameter, in the order of the command line.
        defaults: Values of those that may be left out.
        rest: A parameter that takes all remaining values of the command line.
        lists: Parameters that are lists.
        texts: Parameters that are text, whatever it looks like.
        aliases: Other names of the family.

    Example:
        >>> family_named("reduced-rank").name
        'reduced_rank_regression'
    """

    name: str
    scope: str
    theorem: str
    citation: str
    parameters: Mapping[str, str]
    compute: Callable[..., LearningCoefficient]
    defaults: Mapping[str, Any]
    rest: str | None
    lists: tuple[str, ...]
    texts: tuple[str, ...]
    aliases: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Name, parameters, theorem and citation as JSON-able values.

        Example:
            >>> family_named("regular").to_dict()["parameters"]
            {'dim': 'number of parameters'}
        """
        return {
            "family": self.name,
            "scope": self.scope,
            "parameters": dict(self.parameters),
            "defaults": dict(self.defaults),
            "theorem": self.theorem,
            "citation": self.citation,
            "aliases": list(self.aliases),
        }


_FAMILIES: dict[str, Family] = {}
_ALIASES: dict[str, str] = {}


def evaluate(family: str, /, **params: Any) -> LearningCoefficient:
    """Exact learning coefficient of a family by name.

    Args:
        family: A name out of `catalog()`; hyphens and underscores are the same.
        **params: The family's parameters.

    Returns:
        The coefficient, with its status, hypotheses and citation.

    Raises:
        InputError: No such family, parameters that it does not have or that are missing, or values that no theorem
            covers.

    Example:
        >>> print(evaluate("dln", widths=[1, 1, 1], rank=0))
        λ = 1/2, m = 2 (exact) [Aoyagi 2024, ...]
    """
    found = family_named(family)
    unknown, wanted = [name for name in params if name not in found.parameters], ", ".join(found.parameters)
    if unknown:
        raise InputError(f"expected the parameters {wanted} of {found.name}, got {', '.join(map(str, unknown))} too")
    missing = [name for name in found.parameters if name not in params and name not in found.defaults]
    if missing:
        raise InputError(f"expected the parameters {wanted} of {found.name}, got no {', '.join(missing)}")
    return found.compute(**{**found.defaults, **params})


def catalog() -> list[Family]:
    """All families, in the order of the documentation.

    Example:
        >>> [family.name for family in catalog()][:3]
        ['regular', 'normal_crossing', 'monomial_ideal']
    """
    return list(_FAMILIES.values())


def family_named(name: Any) -> Family:
    """The family of that name or alias.

    Raises:
        InputError: There is none; the message names the nearest.

    Example:
        >>> family_named("Deep-Linear").name
        'dln'
    """
    if not isinstance(name, str):
        raise InputError(f"expected the name of a family as text, got {name!r}")
    key = name.strip().lower().replace("-", "_")
    key = _ALIASES.get(key, key)
    if key not in _FAMILIES:
        import difflib

        near = difflib.get_close_matches(key, [*_FAMILIES, *_ALIASES], n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "`crunode exact list` shows all"
        raise InputError(f"expected the name of a family, got {name[:80]!r}; {hint}")
    return _FAMILIES[key]


def _call(module: str, function: str, **fixed: Any) -> Callable[..., LearningCoefficient]:
    """A call that imports its module when it is made, so that one family costs no other's import."""

    def compute(**params: Any) -> LearningCoefficient:
        found = getattr(importlib.import_module(f"crunode.exact.{module}"), function)(**params, **fixed)
        assert isinstance(found, LearningCoefficient)
        return found

    return compute


def _add(
    name: str,
    scope: str,
    theorem: str,
    citation: str,
    compute: Callable[..., LearningCoefficient],
    parameters: dict[str, str],
    *,
    defaults: Mapping[str, Any] | None = None,
    rest: str | None = None,
    lists: tuple[str, ...] = (),
    texts: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
) -> None:
    _FAMILIES[name] = Family(
        name, scope, theorem, citation, parameters, compute, defaults or {}, rest, lists, texts, aliases
    )
    _ALIASES.update(dict.fromkeys(aliases, name))


_add("regular", "global", "λ = d/2", "Schwarz 1978", _call("families", "regular"), {"dim": "number of parameters"})
_add(
    "normal_crossing",
    "local",
    "λ = min (h_j+1)/(2k_j), m how many attain it",
    "Watanabe 2009",
    _call("families", "normal_crossing"),
    {"k": "half the exponents of K", "h": "exponents of the prior, zeros when left out"},
    defaults={"h": None},
    rest="k",
    lists=("k", "h"),
)
_add(
    "monomial_ideal",
    "local",
    "half the optimum of a linear program over the exponents",
    "Howald 2001",
    _call("algebra.ideals", "monomial_ideal"),
    {"exponents": "exponents of each monomial", "h": "exponents of the prior, zeros when left out"},
    defaults={"h": None},
    rest="exponents",
    lists=("h",),
)
_add(
    "toy_function",
    "local",
    "Newton polyhedron, weighted blow-ups, or resolution in the plane, as the polynomial allows",
    "Varchenko 1976; Watanabe 2009",
    _call("algebra.newton", "polynomial"),
    {
        "K": 'a polynomial, such as "x**2*y**4"',
        "point": "where, the origin when left out",
        "h": "exponents of the prior",
    },
    defaults={"point": None, "h": None},
    lists=("point", "h"),
    texts=("K",),
    aliases=("polynomial",),
)
_add(
    "dln",
    "global",
    "regular part [r(H_out+H_in) − r²]/2 plus the product of matrices at zero",
    "Aoyagi 2024, theorem 2",
    _call("linear_networks", "deep_linear"),
    {"widths": "from output to input", "rank": "of the true map"},
    rest="widths",
    lists=("widths",),
    aliases=("deep_linear",),
)
_add(
    "dln_bias",
    "global",
    "that of `dln` plus H_out/2",
    "Aoyagi 2025, theorem 4",
    _call("linear_networks", "deep_linear", bias=True),
    {"widths": "from output to input", "rank": "of the true map"},
    rest="widths",
    lists=("widths",),
    aliases=("deep_linear_bias",),
)
_add(
    "dln_depth_limit",
    "global",
    "λ of `dln` from a certain depth on, all hidden widths equal",
    "limit of Aoyagi 2024",
    _call("linear_networks", "deep_linear_depth_limit"),
    {
        "in_dim": "input width",
        "hidden": "width of every hidden layer",
        "out_dim": "output width",
        "rank": "of the true map",
        "bias": "whether layers have biases",
    },
    defaults={"bias": False},
    aliases=("deep_linear_depth_limit",),
)
_add(
    "dln_local",
    "local",
    "half the codimension of the solutions, from the ranks of partial products",
    "Mustaţă 2002 with Pepin Lehalleur & Rimányi 2024",
    _call("local_linear", "deep_linear_local"),
    {"widths": "from output to input", "ranks": "of partial products, by first factor", "bias": "biases"},
    defaults={"bias": False},
    lists=("widths",),
    aliases=("deep_linear_local",),
)
_add(
    "reduced_rank_regression",
    "global",
    "four cases by widths and rank",
    "Aoyagi & Watanabe 2005",
    _call("linear_networks", "reduced_rank"),
    {"in_dim": "input width", "hidden": "hidden width", "out_dim": "output width", "rank": "of the true map"},
    aliases=("reduced_rank", "rrr"),
)
_add(
    "reduced_rank_regression_local",
    "local",
    "half the rank of the Jacobian plus reduced rank regression of rank 0 in what is left",
    "Aoyagi & Watanabe 2005 in local coordinates",
    _call("linear_networks", "reduced_rank_local"),
    {
        "in_dim": "input width",
        "hidden": "hidden width",
        "out_dim": "output width",
        "rank": "of the product",
        "rank_out_factor": "of the factor at the output",
        "rank_in_factor": "of the factor at the input",
    },
    aliases=("reduced_rank_local",),
)
_add(
    "relu_three_layer_fixed_regions",
    "global",
    "sum over groups of units that share a region",
    "Aoyagi 2025, theorem 6",
    _call("linear_networks", "relu_three_layer"),
    {"input_dim": "number of inputs", "groups": "outputs, hidden and rank of each group"},
    aliases=("relu_three_layer",),
)
_add(
    "quadratic_single_output_bias",
    "local",
    "(d+1)(d+2)/4 for K ≥ d, else half of K(2d−K+1)/2 + K + 1",
    "Cullen 2026, theorems G.1 and G.2",
    _call("quadratic", "quadratic_single_output"),
    {"input_dim": "d", "hidden": "K"},
    aliases=("quadratic_single_output",),
)
_add(
    "quadratic_multi_output_generic",
    "local",
    "half the generic rank, usually min{K(d+p−1), p·d(d+1)/2}",
    "Cullen 2026, theorems 4.1 and 4.2, corrected; Abo & Brambilla 2009",
    _call("quadratic", "quadratic_multi_output"),
    {"input_dim": "d", "outputs": "p", "hidden": "K"},
    aliases=("quadratic_multi_output",),
)
_add(
    "quadratic_stage_two",
    "local",
    "half of K_eff(d+p−1) + p(K−K_eff)",
    "Cullen 2026, theorem 5.5, corrected",
    _call("quadratic", "stage_two"),
    {"input_dim": "d", "outputs": "p", "hidden": "K", "effective_width": "K_eff"},
    aliases=("stage_two",),
)
_add(
    "quadratic_modular_addition_generic",
    "local",
    "half of min{K(3p−2), p(p² − [centred])}, by training pairs where they are given",
    "Cullen 2026, theorems 4.1 and 4.2, corrected for the data",
    _call("modular_addition", "quadratic_on_data"),
    {
        "modulus": "p",
        "hidden": "K",
        "centred": "whether the mean over examples is taken off",
        "data": '"all p^2 pairs", a list of pairs, or {"examples": N, "data_rank": n}',
    },
    defaults={"data": "all p^2 pairs"},
    aliases=("quadratic_modular_addition", "modular_addition"),
)
_add(
    "quadratic_modular_addition_fourier",
    "local",
    "rank/2 ≤ λ ≤ K(3p−2)/2 with K = 3(p−1) units",
    "Cullen 2026, section 5.2, corrected",
    _call("modular_addition", "fourier_solution"),
    {"modulus": "p: 3, 5, 7 or 9"},
    aliases=("fourier_solution",),
)
_add(
    "lazy_random_features_modular_addition",
    "global",
    "(p/2) min(l, K), l = p² or p² − 1 centred",
    "Cullen 2026, theorem 5.2",
    _call("modular_addition", "lazy_random_features"),
    {"modulus": "p", "hidden": "K", "centred": "whether the mean is taken off", "activation": '"t^2"'},
    defaults={"activation": "t^2"},
    aliases=("lazy_random_features",),
)
_add(
    "linearised_ntk",
    "global",
    "half the rank of the Jacobian",
    "Cullen 2026, theorem 5.1",
    _call("families", "linearised"),
    {"jacobian_rows": "one row an output on the data"},
    rest="jacobian_rows",
    aliases=("linearised", "linearized", "ntk"),
)
_add(
    "interpolation_manifold",
    "local",
    "half of examples times outputs",
    "Cooper 2021",
    _call("families", "interpolation_manifold"),
    {"n_params": "number of parameters", "n_data": "number of examples", "output_dim": "number of outputs"},
    aliases=("zero_loss_manifold",),
)
_add(
    "tanh_zero_truth",
    "global",
    "(H+i+i²)/(4i+2), i = ⌊√H⌋",
    "Aoyagi & Watanabe 2005 (IEICE)",
    _call("families", "tanh_zero_truth"),
    {"hidden": "H"},
)
_add(
    "gaussian_mixture_two_components",
    "global",
    "d/2 + min(1/2, d/4)",
    "Yamazaki & Watanabe 2003",
    _call("families", "gaussian_mixture_two_components"),
    {"dim": "dimension of the data"},
    aliases=("gaussian_mixture",),
)
_add(
    "naive_bayes_binary",
    "global",
    "(n+1)/2 for n ≥ 3; (3/2, m = 3) for n = 2; 1/2 for n = 1",
    "Rusakov & Geiger 2005, theorem 4",
    _call("families", "naive_bayes_binary"),
    {"features": "n", "truth": '"independent"'},
    defaults={"truth": "independent"},
    aliases=("naive_bayes",),
)
_add(
    "lda_stochastic_matrix_factorisation",
    "global",
    "(M−1)/2 plus reduced rank regression with all sizes less one",
    "Hayashi 2021",
    _call("families", "lda"),
    {"vocab": "M words", "docs": "N documents", "topics": "H", "rank": "of the true matrix"},
    aliases=("lda", "stochastic_matrix_factorisation"),
)
