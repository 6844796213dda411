"""Each test and each example begins with the same random state, whatever ran before it."""

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed torch."""
    import torch  # not at the top: the controller of a parallel run tests nothing and saves itself the import

    torch.manual_seed(0)
