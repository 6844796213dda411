"""What can be found while a training is followed."""

from __future__ import annotations

from crunode.findings.kind import FindingKind

__all__ = ["KINDS"]

KINDS = [
    FindingKind(
        "TRACK901",
        "the probe failed",
        "error",
        "A probe raised an error at this step of the training. The trajectory keeps the error's text in its place and "
        "goes on; the step counts for no change point.",
        "Read diagnostics['error'] of the estimate. To measure the step again, delete its file in the store and those "
        "of later steps, and repeat the call.",
    ),
    FindingKind(
        "TRACK902",
        "checkpoints left out",
        "warning",
        "Some files of the folder are missing, corrupt, doubled, or no weights of this model. The trajectory was made "
        "from the others, so that changes between two visits may be wider apart than the schedule says.",
        "Restore the files from a copy and repeat the call.",
    ),
]
