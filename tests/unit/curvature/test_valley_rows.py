"""How many examples are looked at until they show the rank."""

import torch

from crunode.curvature import valley_rows
from crunode.curvature.jacobian import Evaluation
from crunode.examples.toys import reduced_rank


def test_before_twice_as_many_examples_the_middle_is_looked_at(monkeypatch):
    looked = []

    class Noted(valley_rows.Progress):
        def advance(self, units=1, note=None):
            looked.append(int(note.split()[0]))

    monkeypatch.setattr(valley_rows, "Progress", Noted)
    land, chance = reduced_rank(30, 10, 3, rank=3), torch.Generator().manual_seed(0)
    seen = Evaluation(land)

    def random(size):
        return torch.randn(size, generator=chance, dtype=torch.float64)

    found = valley_rows.enough_rows(land, seen, seen.center, torch.randperm(land.n, generator=chance), random, None)
    # 30 inputs need 30 examples: 22 are too few, and 33, halfway to 44, are enough.
    assert looked[:2] == [22, 33]
    assert max(looked) == 33
    assert found.outputs.examples == 30
    assert found.rank == 90  # of 3 outputs with 30 inputs each
