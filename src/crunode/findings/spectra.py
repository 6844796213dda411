"""What can be found when a spectrum is held against a law."""

from __future__ import annotations

from crunode.findings.kind import FindingKind

__all__ = ["KINDS"]

KINDS = [
    FindingKind(
        "SPEC1001",
        "the spectrum does not follow the law",
        "warning",
        "The eigenvalues are farther from the fitted law, in Kolmogorov distance, than those of random matrices that "
        "have that law. The parameters are those of the nearest law of the family; errors assume that the law holds.",
        "Take another family, or a part of the spectrum; look at the distance, not at the errors, to judge the fit.",
    ),
    FindingKind(
        "SPEC1002",
        "the fit did not converge",
        "error",
        "The search for the nearest law of the family ended without a minimum. Often two parameters have the same "
        "effect on this spectrum, such as ratio and energy at high energies.",
        "Fix the parameters that are known, by `fixed`.",
    ),
    FindingKind(
        "SPEC1003",
        "no power law in the tail",
        "warning",
        "An exponential tail describes these eigenvalues as well as a power law or better (Vuong's test at 5%), so "
        "that the exponent has no meaning of its own.",
        "Take more eigenvalues of the tail, or compare with a law that has an edge.",
    ),
    FindingKind(
        "SPEC1004",
        "few eigenvalues in the tail",
        "warning",
        "Fewer than 50 eigenvalues are above the start of the tail. The exponent and its error are then biased.",
        "Lower the start of the tail, or take more eigenvalues.",
    ),
    FindingKind(
        "SPEC1005",
        "the exponent depends on the range",
        "warning",
        "The power that fits the index changes by more than its standard error when only the lower half of the range "
        "is taken: the 3/2 law holds in the limit at the critical energy only. The systematic error has it in it.",
        "Take energies nearer to the critical one.",
    ),
]
