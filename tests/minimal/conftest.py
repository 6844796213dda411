"""These tests are for an install without optional packages."""

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("matplotlib") else []
