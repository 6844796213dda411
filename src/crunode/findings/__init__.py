"""Every finding code of the library: what it means and what to do, by subject."""

from __future__ import annotations

from crunode.findings import criteria, curvature, data, sampling, spectra, topology, training
from crunode.findings.kind import FindingKind, Remedy

__all__ = ["FINDINGS", "FindingKind", "Remedy"]

_SUBJECTS = (sampling, data, criteria, curvature, training, topology, spectra)
FINDINGS: dict[str, FindingKind] = {one.code: one for subject in _SUBJECTS for one in subject.KINDS}
