"""How chains are put together: all of them, in order, in groups of like size that caches and memory hold."""

import math

import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.sampling import layout
from crunode.sampling.layout import (
    check_memory,
    choose_layout,
    enough_for_a_worker,
    free_memory,
    memory_class,
    split_chains,
    step_memory,
)

IMAGES = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def land():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return Landscape(nn.Linear(6, 1), (x, x[:, :1]), "gaussian")


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_groups_are_of_like_size_and_fit(land, monkeypatch, most):
    size = 4 * (4 * land.dim + 3 * 16 * land.activations)
    monkeypatch.setattr(layout, "_AT_A_TIME", (most + 0.5) * size)
    for chains in (1, 2, 3, 7, 8, 32):
        groups = split_chains(land, range(10, 10 + chains), 16)
        sizes = [len(group) for group in groups]
        assert [chain for group in groups for chain in group] == list(range(10, 10 + chains))
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= most
        assert len(groups) == math.ceil(chains / most), "no more groups than caches ask for"


def test_small_steps_stay_together(land):
    for batch in (None, 64, 16):
        assert split_chains(land, range(9), batch) == [list(range(9))]


def test_chains_over_much_data_are_shared_among_workers(land, monkeypatch):
    monkeypatch.setattr(layout, "_WORTH_A_WORKER", 3 * 64 * land.activations)
    assert enough_for_a_worker(land, 64) == 3
    assert [len(group) for group in split_chains(land, range(9), None)] == [3, 3, 3]
    assert [len(group) for group in split_chains(land, range(9), 16)] == [9], "a fourth of the examples"


def test_one_chain_that_fills_the_caches_is_run_alone(land, monkeypatch):
    monkeypatch.setattr(layout, "_AT_A_TIME", 1.0)
    assert choose_layout(land, 8, 16) == ("sequential", "one chain fills the caches")


def test_the_layout_follows_from_the_question_alone(land):
    seen = {choose_layout(land, 8, 16) for _ in range(3)}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 3)
        seen |= {choose_layout(land, 8, 16)}
    finally:
        torch.set_num_threads(threads)
    assert seen == {("batched", "groups of up to 8 chains share the cost of each operation")}


def test_convolutions_are_run_one_by_one_on_a_processor():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 1))
    chosen, why = choose_layout(Landscape(model, (IMAGES, IMAGES.sum((1, 2, 3))[:, None]), "gaussian"), 4, None)
    assert chosen == "sequential"
    assert why.startswith("convolutions")


def test_groups_are_no_larger_than_memory_holds(land, monkeypatch):
    one = step_memory(land, 1, 16)
    monkeypatch.setattr(layout, "memory_class", lambda device: 3.5 * one / layout._SHARE)
    assert [len(group) for group in split_chains(land, range(8), 16)] == [2, 3, 3]
    assert choose_layout(land, 8, 16)[0] == "batched"


def test_chains_that_fit_one_by_one_only_are_run_so(land, monkeypatch):
    monkeypatch.setattr(layout, "memory_class", lambda device: 1.5 * step_memory(land, 1, 16) / layout._SHARE)
    chosen, why = choose_layout(land, 8, 16)
    assert chosen == "sequential"
    assert "GB" in why


def test_what_does_not_fit_at_all_is_refused_before_it_runs(land, monkeypatch):
    monkeypatch.setattr(layout, "free_memory", lambda device: 0.5 * step_memory(land, 1, 16))
    with pytest.raises(InputError, match="smaller batch"):
        check_memory(land, 16)
    with pytest.raises(InputError, match="GB free"):
        choose_layout(land, 8, 16)


def test_memory_is_that_of_the_device(land):
    assert 1e7 < free_memory(land.device) < 1e14
    assert free_memory(land.device) < 2 * memory_class(land.device) < 1e14
