"""One measurement of a trajectory: seeds, settings held from the first visit on, and failures kept as results.

A probe is any `Landscape -> Estimate` callable. One that takes a `seed` is given one. One with an attribute
`held_settings`, a function of its estimate that returns keyword arguments, is called with those from the second time
on, so that what was tuned at the first visit holds along the trajectory; `crunode.llc` has it.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from crunode.core.fingerprints import identity
from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, Finding, provenance
from crunode.core.rng import derived_seed, preserved_rng
from crunode.errors import DeadlineReached, DiagnosticWarning, EstimationError, InputError
from crunode.store.documents import dumps, loads, plain

__all__ = [
    "Held",
    "Probe",
    "check_probes",
    "failed_estimate",
    "has_failed",
    "held",
    "held_settings",
    "measure",
    "probe_spec",
    "step_seed",
    "unsettled",
]

Probe = Callable[..., Estimate]
Settings = Callable[[Estimate], Mapping[str, Any]]


@dataclass(frozen=True)
class Held:
    """A probe and how to keep its settings; see `held`."""

    probe: Probe
    held_settings: Settings

    def __call__(self, landscape: Landscape, **settings: Any) -> Estimate:
        """The probe's estimate."""
        return self.probe(landscape, **settings)


def held(probe: Probe, settings: Settings) -> Held:
    """A probe whose settings are tuned once along a trajectory.

    Args:
        probe: Any `Landscape -> Estimate` callable that takes the settings as keyword arguments.
        settings: Reads them from an estimate, as in `lambda estimate: {"step": estimate.spec["step"]}`. Settings read
            from an estimate that was made with them have to be the same.

    Example:
        >>> def width(land, step=None):
        ...     step = 0.5 if step is None else step
        ...     return Estimate("width", 2 * step, se=0.0, spec={"step": step})
        >>> held(width, lambda estimate: {"step": estimate.spec["step"]})(None, step=2.0).value
        4.0
    """
    return Held(probe, settings)


def measure(landscape: Landscape, probe: Probe, seed: int, settings: Mapping[str, Any] | None) -> Estimate:
    """One estimate, without draws and in JSON's types; one of a probe that fails is not ok, and has the error's text.

    Args:
        landscape: The landscape at the weights to look at.
        probe: The probe.
        seed: The seed for it.
        settings: Those held; None for a first visit, which tunes, and then measures with what it found, so that all
            values of a trajectory come from the same settings.

    Returns:
        The estimate; `spec["held"]` has the settings where there are any.

    Example:
        >>> import torch
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.ones(2))
        >>> measure(land, lambda land: Estimate("loss", float(land.loss()), se=0.0), 0, None).value
        2.0
        >>> measure(land, lambda land: 1 / 0, 0, None).diagnostics["error"]
        'ZeroDivisionError: division by zero'
    """
    given = {"seed": seed} if _takes_seed(probe) else {}
    with warnings.catch_warnings(), preserved_rng():
        warnings.simplefilter("ignore", DiagnosticWarning)  # findings stay on the estimates
        try:
            found = _checked(probe(landscape, **given, **(settings or {})))
            if settings is None and math.isfinite(found.value):
                settings = held_settings(probe, found)
                bound = _bound_arguments(probe)
                if any(key not in bound or bound[key] != value for key, value in settings.items()):
                    found = _checked(probe(landscape, **given, **settings))
        except DeadlineReached:  # no fault of the probe: the same call goes on from here
            raise
        except Exception as error:
            return _plain_estimate(_failed(probe, error, given.get("seed")))
    spec = dict(found.spec)
    if settings:
        spec["held"] = {key: _described(value) for key, value in settings.items()}
    return _plain_estimate(replace(found, spec=spec))


def unsettled(probes: Mapping[str, Probe]) -> dict[str, Mapping[str, Any] | None]:
    """Settings before a first visit: None for those that it will find, nothing for probes that have none to hold."""
    return {name: None if hasattr(_inner(probe), "held_settings") else {} for name, probe in probes.items()}


def held_settings(probe: Probe, estimate: Estimate) -> dict[str, Any]:
    """The settings to keep after an estimate; none for a probe that has nothing to tune."""
    reader = getattr(_inner(probe), "held_settings", None)
    return {} if reader is None else dict(reader(estimate))


def step_seed(seed: int, step: int) -> int:
    """The seed of the probes at a step."""
    return derived_seed(seed, step)


def probe_spec(probe: Probe) -> dict[str, Any]:
    """What makes two probes the same: name, bound arguments and, for code outside this library, the code itself."""
    settings: dict[str, Any] = {}
    inner: Any = probe
    while isinstance(inner, functools.partial | Held):
        if isinstance(inner, Held):
            inner = inner.probe
            continue
        bound = {**{str(k): value for k, value in enumerate(inner.args)}, **inner.keywords}
        settings = {**{key: _described(value) for key, value in bound.items()}, **settings}
        inner = inner.func
    module = getattr(inner, "__module__", "") or ""
    spec: dict[str, Any] = {"name": f"{module}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"}
    if settings:
        spec["settings"] = settings
    if module.partition(".")[0] != "crunode":
        spec["code"] = identity(inner)[:16]
    return spec


def check_probes(probes: Any) -> dict[str, Probe]:
    """The probes by name.

    Raises:
        InputError: There is none, or one cannot be called.
    """
    if not isinstance(probes, Mapping) or not probes:
        raise InputError(f'expected probes by name, as in {{"llc": crunode.llc}}, got {probes!r}')
    for name, probe in probes.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"expected probes with text for names, got the name {name!r}")
        if not callable(probe) or isinstance(probe, type):
            raise InputError(f"expected the probe {name!r} as a function Landscape -> Estimate, got {probe!r}")
    return dict(probes)


def _inner(probe: Any) -> Any:
    while isinstance(probe, functools.partial):
        probe = probe.func
    return probe


def _bound_arguments(probe: Any) -> dict[str, Any]:
    """Keyword arguments that were given beforehand."""
    if isinstance(probe, Held):
        return _bound_arguments(probe.probe)
    if isinstance(probe, functools.partial):
        return {**_bound_arguments(probe.func), **probe.keywords}
    return {}


def _takes_seed(probe: Any) -> bool:
    """Whether the probe has an argument `seed` that is still free."""
    if "seed" in _bound_arguments(probe):
        return False
    while isinstance(probe, functools.partial | Held):
        probe = probe.func if isinstance(probe, functools.partial) else probe.probe
    try:
        parameter = inspect.signature(probe).parameters.get("seed")
    except (TypeError, ValueError):  # some functions written in C do not tell
        return False
    return parameter is not None and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)


def _checked(found: Any) -> Estimate:
    if not isinstance(found, Estimate):
        raise InputError(
            f"expected an Estimate from a probe, got {type(found).__name__}; return "
            "crunode.Estimate(name, value, se=...)"
        )
    return found


def _failed(probe: Probe, error: Exception, seed: int | None) -> Estimate:
    text = f"{type(error).__name__}: {error}"
    partial = error.partial if isinstance(error, EstimationError) else None
    if not isinstance(partial, Estimate):
        name = str(getattr(_inner(probe), "__name__", type(probe).__name__))
        partial = Estimate(name, math.nan, se=math.nan, systematic=math.nan, seed=seed, provenance=provenance())
    found = partial.with_findings(Finding.of("TRACK901", text.splitlines()[0][:200]))
    return replace(found, diagnostics={**found.diagnostics, "error": text})


def failed_estimate(name: str, error: Exception) -> Estimate:
    """The failure of a probe that was not even called."""
    return _plain_estimate(replace(_failed(measure, error, None), name=name))


def has_failed(estimate: Estimate) -> bool:
    """Whether the estimate stands for a probe that failed."""
    return any(finding.code == "TRACK901" for finding in estimate.findings)


def _plain_estimate(estimate: Estimate) -> Estimate:
    """What reading the estimate back from a file would give."""
    content = estimate.to_dict()
    content |= {key: _described(content[key]) for key in ("spec", "diagnostics", "terms", "provenance")}
    content |= {key: float(content[key]) for key in ("value", "se", "systematic")}
    return Estimate.from_dict(loads(dumps(content)))


def _described(value: Any) -> Any:
    """`value` in JSON's types, with the words for it where it has no such form."""
    try:
        return plain(value)
    except InputError:
        if isinstance(value, Mapping):
            return {str(key): _described(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [_described(item) for item in value]
        return repr(value) if value.__class__.__repr__ is not object.__repr__ else identity(value)[:16]
