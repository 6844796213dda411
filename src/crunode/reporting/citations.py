"""Whose work a result rests on."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["citations_of"]

_LAU = (
    "Lau, Furman, Wang, Murfet, Wei (2023). The local learning coefficient: a singularity-aware complexity measure. "
    "arXiv:2308.12108."
)
_WAIC = (
    "Watanabe (2010). Asymptotic equivalence of Bayes cross validation and widely applicable information criterion in "
    "singular learning theory. JMLR 11, 3571."
)
_WBIC = "Watanabe (2013). A widely applicable Bayesian information criterion. JMLR 14, 867."
_VEHTARI = (
    "Vehtari, Gelman, Simpson, Carpenter, Bürkner (2021). Rank-normalization, folding, and localization: an improved "
    "R-hat for assessing convergence of MCMC. Bayesian Analysis 16, 667."
)
_LOO = "Vehtari, Simpson, Gelman, Yao, Gabry (2024). Pareto smoothed importance sampling. JMLR 25, 72."
_WORKS = {
    "llc": (_LAU, _WBIC),
    "wbic": (_WBIC,),
    "waic": (_WAIC,),
    "functional_variance": (_WAIC,),
    "loo": (_WAIC, _LOO),
    "SGLD": ("Welling, Teh (2011). Bayesian learning via stochastic gradient Langevin dynamics. ICML.",),
    "PSGLD": ("Li, Chen, Carlson, Carin (2016). Preconditioned stochastic gradient Langevin dynamics. AAAI.",),
    "SGHMC": ("Chen, Fox, Guestrin (2014). Stochastic gradient Hamiltonian Monte Carlo. ICML.",),
    "SGNHT": ("Ding et al. (2014). Bayesian sampling using stochastic gradient thermostats. NeurIPS.",),
    "HMC": ("Duane, Kennedy, Pendleton, Roweth (1987). Hybrid Monte Carlo. Physics Letters B 195, 216.",),
    "MALA": ("Roberts, Tweedie (1996). Exponential convergence of Langevin distributions. Bernoulli 2, 341.",),
    "NUTS": ("Hoffman, Gelman (2014). The No-U-Turn sampler. JMLR 15, 1593.",),
    "chains": (_VEHTARI,),
    "changes": (
        "Jackson et al. (2005). An algorithm for optimal partitioning of data on an interval. IEEE SPL 12, 105.",
    ),
}


def citations_of(names: Iterable[object]) -> tuple[str, ...]:
    """The works behind estimates, kernels and diagnostics of these names; names that are not known are passed over.

    Example:
        >>> citations_of(["wbic", "no such thing"])
        ('Watanabe (2013). A widely applicable Bayesian information criterion. JMLR 14, 867.',)
    """
    found = [work for name in names if isinstance(name, str) for work in _WORKS.get(name, ())]
    return tuple(dict.fromkeys(found))
