import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crunode_papers.grokking.fourier import effective_width, unit_strengths
from crunode_papers.grokking.measures import grokking_times, severity
from crunode_papers.grokking.networks import QuadraticNetwork, centred_l2
from crunode_papers.grokking.stacked import gradients
from crunode_papers.grokking.tasks import OPERATIONS, ModularTask

PRIMES = (2, 3, 5, 7, 11, 13)


@given(
    st.sampled_from(PRIMES[1:]), st.sampled_from(OPERATIONS), st.floats(0.2, 0.8), st.integers(0, 2**32), st.booleans()
)
def test_parts_are_disjoint_and_complete(p, operation, fraction, seed, hot):
    task = ModularTask(p, operation, fraction, seed)
    both = torch.cat([task.training, task.validation])
    assert torch.equal(both.sort().values, torch.arange(len(task.pairs)))
    assert abs(len(task.training) - fraction * len(task.pairs)) < 1.001
    x, y = task.data(targets="one-hot" if hot else "classes")
    assert x.shape == (len(task.training), 2 * p)
    assert torch.equal(y.argmax(1) if hot else y, task.results[task.training])


@given(st.sampled_from(PRIMES[1:]), st.sampled_from(("multiplication", "division")))
def test_division_undoes_multiplication(p, operation):
    back = {"multiplication": "division", "division": "multiplication"}[operation]
    table = {tuple(pair): c for pair, c in zip(*_listed(ModularTask(p, operation, 0.5)), strict=True)}
    other = {tuple(pair): c for pair, c in zip(*_listed(ModularTask(p, back, 0.5)), strict=True)}
    assert all(other[c, b] == a for (a, b), c in table.items() if b)


def _listed(task):
    return task.pairs.tolist(), task.results.tolist()


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(1, 5), st.integers(1, 9), st.integers(0, 1000), st.booleans())
def test_gradient_is_that_of_autograd(p, width, size, seed, centred):
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(2, 2 * p, width, generator=generator, dtype=torch.float64)
    second = torch.randn(2, width, p, generator=generator, dtype=torch.float64)
    pairs = torch.randint(p, (2, size, 2), generator=generator)
    results = torch.randint(p, (2, size), generator=generator)
    found = gradients(first, second, pairs + torch.tensor([0, p]), results, centred)
    for k in range(2):
        net = QuadraticNetwork.of(first[k].T, second[k].T)
        outputs, y = net(pairs[k]), torch.nn.functional.one_hot(results[k], p).double()
        loss = centred_l2(outputs, y).mean() if centred else 0.5 * (outputs - y).square().sum(1).mean()
        expected = torch.autograd.grad(loss, (net.first.weight, net.second.weight))
        scale = 1 + max(float(slope.abs().max()) for slope in expected)
        for one, other in zip((found[0][k].T, found[1][k].T), expected, strict=True):
            assert float((one - other).abs().max()) <= 1e-10 * scale


@given(st.integers(2, 7), st.integers(1, 6), st.integers(0, 100), st.floats(0.1, 10.0))
def test_strengths_do_not_feel_scaling(p, width, seed, factor):
    net = QuadraticNetwork(p, width, seed).double()
    scaled = QuadraticNetwork.of(net.first.weight.detach() * factor, net.second.weight.detach() / factor**2)
    assert torch.allclose(unit_strengths(net), unit_strengths(scaled), rtol=1e-9)
    assert effective_width(net) == effective_width(scaled) == width


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30), st.integers(1, 500))
def test_severity_lies_between_zero_and_one_and_needs_generalization(accuracies, every):
    train, held = (list(column) for column in zip(*accuracies, strict=True))
    epochs = [every * (k + 1) for k in range(len(train))]
    value = severity(epochs, train, held)
    assert 0 <= value <= 1
    assert (value == 0) or held[-1] >= 0.95
    found = grokking_times(epochs, train, held)
    assert (found.generalization is None) == (max(held) < 0.95)
    assert found.delay is None or abs(found.delay) <= epochs[-1]
