"""Conformance suites for what others write: kernels and probes that pass them work wherever crunode's own do."""

from crunode.testing.kernels import check_kernel
from crunode.testing.probes import check_probe

__all__ = ["check_kernel", "check_probe"]
