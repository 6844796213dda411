"""How chains are put together: all of them, in order, in groups of like size that caches hold."""

import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.sampling import layout
from crunode.sampling.layout import check_memory, choose_layout, free_memory, split_chains, step_memory


@pytest.fixture
def land():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return Landscape(nn.Linear(6, 1), (x, x[:, :1]), "gaussian")


@pytest.mark.parametrize("chains", [1, 2, 3, 7, 8, 32])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_groups_are_of_like_size_and_fit(land, monkeypatch, chains, workers, most):
    size = 4 * (4 * land.dim + 3 * 16 * land.activations)
    monkeypatch.setattr(layout, "_AT_A_TIME", (most + 0.5) * size / torch.get_num_threads())
    groups = split_chains(land, range(10, 10 + chains), 16, workers)
    sizes = [len(group) for group in groups]
    assert [chain for group in groups for chain in group] == list(range(10, 10 + chains))
    assert max(sizes) - min(sizes) <= 1
    assert len(groups) % min(workers, chains) == 0
    assert min(sizes) >= 2 or chains < 2 * workers
    assert max(sizes) <= most or chains < 2 * (len(groups) + workers)  # more groups would leave single chains


def test_all_data_and_small_steps_stay_together(land):
    assert split_chains(land, range(9), None) == [list(range(9))]
    assert split_chains(land, range(9), 64) == [list(range(9))]
    assert split_chains(land, range(9), 16) == [list(range(9))]


def test_the_trial_is_of_a_group(land, monkeypatch):
    """Were it of all chains, a layout could be refused for being slow at a size that is never run."""
    tried = []
    monkeypatch.setattr(layout, "_AT_A_TIME", 1.0)
    monkeypatch.setattr(layout, "_trial", lambda _, chains, *args, **options: tried.append(chains) or float(chains))
    assert choose_layout(land, 8, 16) == ("batched", "faster in a trial: 8 s a step against 8 s one by one")
    assert tried == [2, 1]


def test_groups_are_no_larger_than_memory_holds(land, monkeypatch):
    one = step_memory(land, 1, 16)
    monkeypatch.setattr(layout, "free_memory", lambda device: 3.5 * one / layout._SHARE)
    assert [len(group) for group in split_chains(land, range(8), 16)] == [2, 3, 3]
    assert [len(group) for group in split_chains(land, range(8), 16, workers=2)] == [1] * 8
    assert choose_layout(land, 8, 16)[0] in ("batched", "sequential")


def test_chains_that_fit_one_by_one_only_are_run_so(land, monkeypatch):
    monkeypatch.setattr(layout, "free_memory", lambda device: 1.5 * step_memory(land, 1, 16))
    chosen, why = choose_layout(land, 8, 16)
    assert chosen == "sequential"
    assert "GB" in why


def test_what_does_not_fit_at_all_is_refused_before_it_runs(land, monkeypatch):
    monkeypatch.setattr(layout, "free_memory", lambda device: 0.5 * step_memory(land, 1, 16))
    with pytest.raises(InputError, match="smaller batch"):
        check_memory(land, 16)
    with pytest.raises(InputError, match="GB free"):
        choose_layout(land, 8, 16)


def test_free_memory_is_that_of_the_device(land):
    assert 1e7 < free_memory(land.device) < 1e14
