import math
import pickle
import random
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch import nn

from crunode.errors import InputError
from crunode.exact import deep_linear_local_at
from crunode_papers.hitchcock2025.families import Square, family_problems, shallow_network
from crunode_papers.hitchcock2025.linear import exact_linear, random_network, random_shape, singular_network, truncated
from crunode_papers.hitchcock2025.problems import CLASSES, KINDS, REFERENCE, nearest_class, problems_of

ISSUED = [Fraction(v) for v in ("13/2", "6", "27/2", "44", "72", "44", "11", "9")]


def weights(land):
    return list(land.packing.unravel(land.center).values())


def rank_of(matrix):
    singular = torch.linalg.svdvals(matrix.double())
    return int((singular > 1e-5 * max(float(singular[0]), 1e-12)).sum()) if len(singular) else 0


def jacobian(land):
    """Derivatives of all outputs by all parameters, by plain autograd."""
    rows = []
    point = land.center.clone().requires_grad_()
    outputs = land.batch_outputs(point, next(iter(land.passes(60)))).flatten()
    for value in outputs:
        (row,) = torch.autograd.grad(value, point, retain_graph=True)
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("seed", range(5000, 5006))
def test_random_networks_have_the_ranks_they_claim_and_no_loss(seed):
    (problem,) = problems_of("1K", count=1, first_seed=seed)
    land = problem.with_examples(200).landscape()
    layers = weights(land)
    assert [tuple(w.shape) for w in layers] == [(b, a) for a, b in pairwise(problem.widths)]
    assert [rank_of(w) for w in layers] == list(problem.ranks)
    assert land.dim == problem.dim == sum(w.numel() for w in layers)
    assert float(land.loss()) < 1e-9
    assert [t.shape for t in land.data.tensors()] == [(200, problem.widths[0]), (200, problem.widths[-1])]
    x = land.data.tensors()[0]
    assert float(x.abs().max()) <= 10
    assert abs(float(x.std()) - 10 / math.sqrt(3)) < 0.3
    bounds = [math.sqrt(6 / (a + b)) for a, b in pairwise(problem.widths)]
    full = [rank == min(w.shape) for w, rank in zip(layers, problem.ranks, strict=True)]
    assert all(float(w.abs().max()) <= b + 1e-6 for w, b, whole in zip(layers, bounds, full, strict=True) if whole)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_exact_value_is_that_of_the_weights_themselves(seed):
    widths, ranks = random_shape(seed, (2, 3), (2, 5))
    land = random_network(50, seed=seed, layers=(2, 3), widths=(2, 5))
    found = deep_linear_local_at([w.tolist() for w in weights(land)[::-1]], tolerance=1e-6)
    local, whole = exact_linear(widths, ranks)
    assert (local.value, local.multiplicity) == (found.value, found.multiplicity)
    assert whole.value <= local.value


def test_same_seed_same_network_and_no_trace_on_global_random_state():
    state, python = torch.get_rng_state(), random.getstate()
    first, again, other = (random_network(64, seed=s, layers=(2, 3), widths=(3, 6)) for s in (7, 7, 8))
    assert torch.equal(first.center, again.center)
    assert all(torch.equal(a, b) for a, b in zip(first.data.tensors(), again.data.tensors(), strict=True))
    assert first.center.shape != other.center.shape or not torch.equal(first.center, other.center)
    assert torch.equal(state, torch.get_rng_state())
    assert python == random.getstate()


def test_weights_do_not_depend_on_the_number_of_examples():
    few, many = (random_network(n, seed=3, layers=(2, 3), widths=(3, 6)) for n in (10, 500))
    assert torch.equal(few.center, many.center)


def test_classes_are_those_published():
    assert list(CLASSES) == ["1K", "10K", "100K", "1M", "10M", "100M"]
    assert [c.step for c in CLASSES.values()] == [5e-7, 5e-7, 1e-7, 5e-8, 2e-8, 2e-8]
    assert [c.n for c in CLASSES.values()] == [10**5] * 2 + [10**6] * 4
    assert [c.steps for c in CLASSES.values()] == [10_000] * 2 + [50_000] * 4
    for kind, size in CLASSES.items():
        found = problems_of(kind, count=30)
        assert [p.seed for p in found] == list(range(5000, 5030))
        for p in found:
            assert size.layers[0] <= len(p.widths) - 1 == len(p.ranks) <= size.layers[1]
            assert size.widths[0] <= min(p.widths)
            assert max(p.widths) <= size.widths[1]
            assert 0 < p.whole.value <= p.local.value <= Fraction(p.dim, 2)
        cut = [r < min(a, b) for p in found for r, (a, b) in zip(p.ranks, pairwise(p.widths), strict=True)]
        assert 0.3 < sum(cut) / len(cut) < 0.65
    assert len(problems_of("100M")) == 5


def test_some_networks_are_more_regular_than_their_model():
    found = problems_of("1K")
    assert len(found) == 100
    assert any(p.local.value > p.whole.value for p in found)


@pytest.mark.parametrize("shape", [(9, 5), (5, 9), (140, 150), (150, 140)])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_truncation_is_the_nearest_matrix_of_that_rank(shape, share):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    rank = int(share * min(shape))
    cut = truncated(weight, rank)
    singular = torch.linalg.svdvals(weight.double())
    assert rank_of(cut) == rank
    assert cut.shape == weight.shape
    # Eckart & Young: the distance is the norm of the singular values left out.
    assert float((cut - weight).double().norm()) == pytest.approx(float(singular[rank:].norm()), rel=1e-5, abs=1e-4)


def test_truncation_refuses_ranks_out_of_range():
    with pytest.raises(InputError, match="a rank from 0 to 2"):
        truncated(torch.ones(2, 3), 3)


def test_reference_cases_have_the_values_they_are_known_by():
    found = problems_of("reference")
    assert len(found) == 16
    assert [p.local.value for p in found] == ISSUED * 2
    assert {p.n for p in found} == {4096}


@pytest.mark.parametrize("case", range(len(REFERENCE)))
def test_reference_cases_lie_at_the_most_singular_point(case):
    problem, noisy = problems_of("reference")[case], problems_of("reference")[case + 8]
    land, other = problem.with_examples(300).landscape(), noisy.landscape()
    layers = weights(land)
    for s in range(len(layers)):
        for t in range(s, len(layers)):
            product = layers[s] if s == t else torch.linalg.multi_dot(layers[s : t + 1][::-1])
            assert rank_of(product) == (problem.ranks[0] if product.abs().max() > 1e-6 else 0)
    assert float(land.loss()) < 1e-9
    # ½‖noise‖² of unit variance in each output.
    assert float(other.loss()) == pytest.approx(problem.widths[-1] / 2, rel=0.06)
    assert exact_linear(problem.widths, problem.ranks)[0].value == problem.local.value


def test_reference_cases_repeat_with_other_seeds():
    found = problems_of("reference", count=2)
    assert len(found) == 32
    assert len({p.name for p in found}) == 32


NOISE_FREE = [p for p in family_problems(3) if "noise0" in p.name]


@pytest.mark.parametrize("problem", NOISE_FREE, ids=lambda problem: problem.name)
def test_family_networks_have_the_rank_their_theorem_wants(problem):
    land = problem.with_examples(60).landscape()
    matrix = jacobian(land)
    rank = rank_of(matrix / matrix.norm(dim=0).clamp(min=1e-12))
    if "zero" in problem.name:
        assert rank == 0
        assert problem.local.value > 0
    else:  # minimally singular: half the rank, locally constant
        assert problem.local.value == Fraction(rank, 2)
    assert float(land.loss()) < 1e-9


def test_families_have_unique_names_and_known_values():
    found = problems_of("families", count=2, first_seed=0)
    assert len({p.name for p in found}) == len(found) == 78
    for p in found:
        assert p.local.value is not None
        assert p.whole is None or p.whole.value <= p.local.value
    assert {p.activation for p in found} == {None, "linear", "square", "tanh", "relu"}


def test_relu_units_have_kinks_apart_from_each_other():
    for seed in range(20):
        land = shallow_network(10, seed=seed, widths=(1, 3, 1), activation="relu")
        named = land.packing.unravel(land.center)
        kinks = sorted((-named["0.bias"] / named["0.weight"][:, 0]).tolist())
        assert min(b - a for a, b in pairwise(kinks)) > 0.1
        assert max(map(abs, kinks)) < 2


def test_problems_travel_to_other_processes():
    for kind in ("1K", "reference", "families"):
        for problem in problems_of(kind, count=1)[:40:7]:
            again = pickle.loads(pickle.dumps(problem))
            assert again.name == problem.name
            small = again.with_examples(20).landscape()
            assert torch.equal(small.center, problem.with_examples(20).landscape().center)


def test_truth_is_that_of_the_target():
    problem = next(p for p in problems_of("1K") if p.local.value > p.whole.value)
    assert problem.truth("local") > problem.truth("basin") == problem.whole.value
    square = next(p for p in problems_of("families") if p.activation == "square")
    assert square.truth("basin") is None
    with pytest.raises(InputError, match="'local' or 'basin'"):
        problem.truth("global")


def test_examples_are_lowered_but_never_raised():
    (problem,) = problems_of("1K", count=1)
    assert problem.with_examples(None).n == 10**5
    assert problem.with_examples(77).n == 77
    assert problem.with_examples(10**9).n == 10**5
    for wrong in (0, True, 1.5):
        with pytest.raises(InputError, match="examples as a positive whole number"):
            problem.with_examples(wrong)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("2K", {}, "a class among 1K"),
        ("1K", {"count": 0}, "count as a whole number from 1"),
        ("1K", {"count": True}, "count as a whole number"),
        ("1K", {"first_seed": -1}, "first_seed as a whole number from 0"),
    ],
)
def test_wrong_classes_and_counts_are_refused(kind, options, words):
    with pytest.raises(InputError, match=words):
        problems_of(kind, **options)


def test_activations_and_nearest_classes():
    assert torch.equal(Square()(torch.tensor([-2.0])), torch.tensor([4.0]))
    with pytest.raises(InputError, match="activation among"):
        shallow_network(5, seed=0, widths=(1, 1, 1), activation="gelu")
    assert [nearest_class(d).name for d in (2, 3000, 4000, 10**6, 10**9)] == ["1K", "1K", "10K", "1M", "100M"]
    assert len(KINDS) == 8


def test_layers_of_singular_networks_are_linear():
    land = singular_network(30, seed=1, widths=(4, 3, 2), rank=1, noise=0.0)
    net = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False))
    net.load_state_dict(land.packing.unravel(land.center))
    x, y = land.data.tensors()
    assert torch.allclose(net(x), y, atol=1e-6)
