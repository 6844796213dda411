"""crunode: learning coefficients and loss-landscape geometry of PyTorch models, with error bars.

Public names are resolved when first used, so that `import crunode` is quick and what needs no torch loads none.
"""

from typing import TYPE_CHECKING

from crunode._lazy import exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from crunode import curvature as curvature
    from crunode import exact as exact
    from crunode import spectra as spectra
    from crunode import topology as topology
    from crunode.core.deadline import Deadline as Deadline
    from crunode.core.execute import Executor as Executor
    from crunode.core.execute import Processes as Processes
    from crunode.core.execute import Serial as Serial
    from crunode.core.execute_ray import Ray as Ray
    from crunode.core.landscape import Landscape as Landscape
    from crunode.core.result import Draws as Draws
    from crunode.core.result import Estimate as Estimate
    from crunode.core.result import Finding as Finding
    from crunode.errors import CrunodeError as CrunodeError
    from crunode.errors import DeadlineReached as DeadlineReached
    from crunode.errors import DiagnosticWarning as DiagnosticWarning
    from crunode.errors import EstimationError as EstimationError
    from crunode.errors import InputError as InputError
    from crunode.errors import MissingExtra as MissingExtra
    from crunode.errors import StoreError as StoreError
    from crunode.errors import StoreMismatch as StoreMismatch
    from crunode.estimators.bounds import bounds as bounds
    from crunode.estimators.classical import aic as aic
    from crunode.estimators.classical import bic as bic
    from crunode.estimators.coefficient import llc as llc
    from crunode.estimators.comparison import Comparison as Comparison
    from crunode.estimators.comparison import compare as compare
    from crunode.estimators.criteria import bayes_training_loss as bayes_training_loss
    from crunode.estimators.criteria import functional_variance as functional_variance
    from crunode.estimators.criteria import gibbs_training_loss as gibbs_training_loss
    from crunode.estimators.criteria import loo as loo
    from crunode.estimators.criteria import singular_fluctuation as singular_fluctuation
    from crunode.estimators.criteria import waic as waic
    from crunode.estimators.criteria import wbic as wbic
    from crunode.estimators.energy_curve import coefficient_from_energy as coefficient_from_energy
    from crunode.estimators.equations import EquationsOfState as EquationsOfState
    from crunode.estimators.equations import equations_of_state as equations_of_state
    from crunode.estimators.equations import simulate as simulate
    from crunode.estimators.evidence import free_energy as free_energy
    from crunode.estimators.generalization import bayes_generalization_loss as bayes_generalization_loss
    from crunode.estimators.generalization import gibbs_generalization_loss as gibbs_generalization_loss
    from crunode.estimators.likelihoods import normalization as normalization
    from crunode.estimators.multitemperature import multi_temperature as multi_temperature
    from crunode.estimators.phase_diagram import PhaseDiagram as PhaseDiagram
    from crunode.estimators.phase_diagram import Transition as Transition
    from crunode.estimators.phases import phases as phases
    from crunode.estimators.singularity import Singularity as Singularity
    from crunode.estimators.singularity import singularity as singularity
    from crunode.estimators.sweep_result import Sweep as Sweep
    from crunode.estimators.sweeps import sweep as sweep
    from crunode.estimators.tempering import rlct as rlct
    from crunode.estimators.triples import Triple as Triple
    from crunode.estimators.volume import volume_scaling as volume_scaling
    from crunode.jobs.registry import recipe as recipe
    from crunode.jobs.rerunning import rerun as rerun
    from crunode.reporting.html import report as report
    from crunode.sampling.each import sample_each as sample_each
    from crunode.sampling.exchange import Exchange as Exchange
    from crunode.sampling.exchange import exchange_report as exchange_report
    from crunode.sampling.ladders import ladder as ladder
    from crunode.sampling.metropolis import HMC as HMC
    from crunode.sampling.metropolis import MALA as MALA
    from crunode.sampling.nuts import NUTS as NUTS
    from crunode.sampling.posterior import Density as Density
    from crunode.sampling.posterior import Flat as Flat
    from crunode.sampling.posterior import Gaussian as Gaussian
    from crunode.sampling.posterior import Posterior as Posterior
    from crunode.sampling.run import sample as sample
    from crunode.sampling.stochastic import PSGLD as PSGLD
    from crunode.sampling.stochastic import SGHMC as SGHMC
    from crunode.sampling.stochastic import SGLD as SGLD
    from crunode.sampling.stochastic import SGNHT as SGNHT
    from crunode.sampling.tuning import tune as tune
    from crunode.store.catalog import Catalog as Catalog
    from crunode.store.run_store import load_estimate as load_estimate
    from crunode.training.schedules import every as every
    from crunode.training.schedules import log_spaced as log_spaced
    from crunode.training.tracker import Tracker as Tracker
    from crunode.training.tracker import track as track
    from crunode.training.trajectory import Trajectory as Trajectory
else:
    __getattr__, __dir__, _names = exports(__name__)
    __all__ = ["__version__", *_names]
