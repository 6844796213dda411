"""Conformance suites: kernels, probes, operators and recipes that pass work wherever crunode's own do."""

from crunode.testing.kernels import check_kernel
from crunode.testing.operators import check_operator
from crunode.testing.probes import check_probe
from crunode.testing.recipes import check_recipe

__all__ = ["check_kernel", "check_operator", "check_probe", "check_recipe"]
