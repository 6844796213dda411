"""crunode: learning coefficients and loss-landscape geometry of PyTorch models, with error bars.

Public names are resolved when first used, so that `import crunode` is quick and what needs no torch loads none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crunode._lazy import resolver

if TYPE_CHECKING:
    from crunode import curvature, exact, spectra, topology
    from crunode.core.deadline import Deadline
    from crunode.core.execute import Executor, Processes, Serial
    from crunode.core.execute_ray import Ray
    from crunode.core.landscape import Landscape
    from crunode.core.result import Draws, Estimate, Finding
    from crunode.errors import (
        CrunodeError,
        DeadlineReached,
        DiagnosticWarning,
        EstimationError,
        InputError,
        MissingExtra,
        StoreError,
        StoreMismatch,
    )
    from crunode.estimators.bounds import bounds
    from crunode.estimators.classical import aic, bic, dic
    from crunode.estimators.coefficient import llc
    from crunode.estimators.comparison import Comparison, compare
    from crunode.estimators.criteria import (
        bayes_training_loss,
        functional_variance,
        gibbs_training_loss,
        loo,
        singular_fluctuation,
        waic,
        wbic,
    )
    from crunode.estimators.energy_curve import coefficient_from_energy
    from crunode.estimators.equations import EquationsOfState, equations_of_state, simulate
    from crunode.estimators.evidence import free_energy
    from crunode.estimators.generalization import bayes_generalization_loss, gibbs_generalization_loss
    from crunode.estimators.likelihoods import normalization
    from crunode.estimators.multitemperature import multi_temperature
    from crunode.estimators.phase_diagram import PhaseDiagram, Transition
    from crunode.estimators.phases import phases
    from crunode.estimators.singularity import Singularity, singularity
    from crunode.estimators.sweep_result import Sweep
    from crunode.estimators.sweeps import sweep
    from crunode.estimators.tempering import rlct
    from crunode.estimators.triples import Triple
    from crunode.estimators.volume import volume_scaling
    from crunode.jobs.registry import recipe
    from crunode.jobs.rerunning import rerun
    from crunode.reporting.html import report
    from crunode.sampling.each import sample_each
    from crunode.sampling.exchange import Exchange, exchange_report
    from crunode.sampling.ladders import ladder
    from crunode.sampling.metropolis import HMC, MALA
    from crunode.sampling.nuts import NUTS
    from crunode.sampling.posterior import Density, Flat, Gaussian, Posterior
    from crunode.sampling.run import sample
    from crunode.sampling.stochastic import PSGLD, SGHMC, SGLD, SGNHT
    from crunode.sampling.tuning import tune
    from crunode.store.catalog import Catalog
    from crunode.store.run_store import load_estimate
    from crunode.training.schedules import every, log_spaced
    from crunode.training.tracker import Tracker, track
    from crunode.training.trajectory import Trajectory

__version__ = "0.1.0"

__all__ = [
    "HMC",
    "MALA",
    "NUTS",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "Catalog",
    "Comparison",
    "CrunodeError",
    "Deadline",
    "DeadlineReached",
    "Density",
    "DiagnosticWarning",
    "Draws",
    "EquationsOfState",
    "Estimate",
    "EstimationError",
    "Exchange",
    "Executor",
    "Finding",
    "Flat",
    "Gaussian",
    "InputError",
    "Landscape",
    "MissingExtra",
    "PhaseDiagram",
    "Posterior",
    "Processes",
    "Ray",
    "Serial",
    "Singularity",
    "StoreError",
    "StoreMismatch",
    "Sweep",
    "Tracker",
    "Trajectory",
    "Transition",
    "Triple",
    "__version__",
    "aic",
    "bayes_generalization_loss",
    "bayes_training_loss",
    "bic",
    "bounds",
    "coefficient_from_energy",
    "compare",
    "curvature",
    "dic",
    "equations_of_state",
    "every",
    "exact",
    "exchange_report",
    "free_energy",
    "functional_variance",
    "gibbs_generalization_loss",
    "gibbs_training_loss",
    "ladder",
    "llc",
    "load_estimate",
    "log_spaced",
    "loo",
    "multi_temperature",
    "normalization",
    "phases",
    "recipe",
    "report",
    "rerun",
    "rlct",
    "sample",
    "sample_each",
    "simulate",
    "singular_fluctuation",
    "singularity",
    "spectra",
    "sweep",
    "topology",
    "track",
    "tune",
    "volume_scaling",
    "waic",
    "wbic",
]

_HOMES = {
    "store.catalog": ("Catalog",),
    "core.deadline": ("Deadline",),
    "core.execute": ("Executor", "Processes", "Serial"),
    "core.execute_ray": ("Ray",),
    "core.landscape": ("Landscape",),
    "core.result": ("Draws", "Estimate", "Finding"),
    "store.run_store": ("load_estimate",),
    "errors": (
        "CrunodeError",
        "DeadlineReached",
        "DiagnosticWarning",
        "EstimationError",
        "InputError",
        "MissingExtra",
        "StoreError",
        "StoreMismatch",
    ),
    "estimators.bounds": ("bounds",),
    "estimators.classical": ("aic", "bic", "dic"),
    "estimators.coefficient": ("llc",),
    "estimators.comparison": ("Comparison", "compare"),
    "estimators.criteria": (
        "bayes_training_loss",
        "functional_variance",
        "gibbs_training_loss",
        "loo",
        "singular_fluctuation",
        "waic",
        "wbic",
    ),
    "estimators.equations": ("EquationsOfState", "equations_of_state", "simulate"),
    "estimators.energy_curve": ("coefficient_from_energy",),
    "estimators.evidence": ("free_energy",),
    "estimators.multitemperature": ("multi_temperature",),
    "estimators.phase_diagram": ("PhaseDiagram", "Transition"),
    "estimators.phases": ("phases",),
    "estimators.singularity": ("Singularity", "singularity"),
    "estimators.generalization": ("bayes_generalization_loss", "gibbs_generalization_loss"),
    "estimators.likelihoods": ("normalization",),
    "estimators.sweep_result": ("Sweep",),
    "estimators.sweeps": ("sweep",),
    "estimators.tempering": ("rlct",),
    "estimators.triples": ("Triple",),
    "estimators.volume": ("volume_scaling",),
    "jobs.registry": ("recipe",),
    "jobs.rerunning": ("rerun",),
    "reporting.html": ("report",),
    "sampling.each": ("sample_each",),
    "sampling.exchange": ("Exchange", "exchange_report"),
    "sampling.ladders": ("ladder",),
    "sampling.metropolis": ("HMC", "MALA"),
    "sampling.nuts": ("NUTS",),
    "sampling.posterior": ("Density", "Flat", "Gaussian", "Posterior"),
    "sampling.run": ("sample",),
    "sampling.stochastic": ("PSGLD", "SGHMC", "SGLD", "SGNHT"),
    "sampling.tuning": ("tune",),
    "training.schedules": ("every", "log_spaced"),
    "training.tracker": ("Tracker", "track"),
    "training.trajectory": ("Trajectory",),
}

__getattr__ = resolver("crunode", _HOMES, modules=("curvature", "exact", "spectra", "topology"))


def __dir__() -> list[str]:
    return sorted(__all__)
