import itertools

import pytest
import torch
from torch.func import functional_call, grad, vmap

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode_papers.grokking.networks import ModularTransformer, QuadraticNetwork, centred_l2, initial_weights
from crunode_papers.grokking.tasks import ModularTask


def test_quadratic_network_is_the_written_formula():
    net = QuadraticNetwork(5, 7, seed=2).double()
    w, v = net.first.weight, net.second.weight
    for a, b in itertools.product(range(5), repeat=2):
        expected = [(v[c] * (w[:, a] + w[:, 5 + b]) ** 2).sum() for c in range(5)]
        assert torch.allclose(net(torch.tensor([[a, b]]))[0], torch.stack(expected), atol=1e-14)


def test_one_hot_rows_and_tokens_give_the_same():
    task = ModularTask(5)
    for net in (QuadraticNetwork(5, 9), ModularTransformer(5, width=8, heads=2)):
        rows, tokens = task.data("all")[0], task.data("all", inputs="tokens")[0]
        assert torch.allclose(net(rows), net(tokens), atol=1e-6)


@pytest.mark.parametrize("make", [lambda s: QuadraticNetwork(5, 6, seed=s), lambda s: ModularTransformer(5, seed=s)])
def test_weights_come_from_the_seed_alone(make):
    state = torch.get_rng_state()
    torch.manual_seed(1)
    one = make(3)
    torch.manual_seed(2)
    again, other = make(3), make(4)
    torch.set_rng_state(state)
    pairs = list(zip(one.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    _ = make(5)
    assert torch.equal(torch.get_rng_state(), state)


def test_initial_weights_are_uniform_and_scaled():
    w, v = initial_weights(53, 256, seed=1)
    assert (w.shape, v.shape) == ((256, 106), (53, 256))
    for weight, inputs in ((w, 106), (v, 256)):
        bound = inputs**-0.5
        assert float(weight.abs().max()) <= bound
        # Variance of 13 000 uniform numbers: standard error 0.9 % × bound²/3; six of them.
        assert float(weight.var()) == pytest.approx(bound**2 / 3, rel=0.054)
    assert torch.allclose(initial_weights(53, 256, seed=1, scale=3.0)[0], 3 * w)


def test_network_of_given_weights_copies_them():
    w, v = torch.randn(4, 6, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    net = QuadraticNetwork.of(w, v)
    w.zero_()
    assert net.first.weight.dtype == torch.float64
    assert bool(net.first.weight.any())
    with pytest.raises(InputError, match="shape"):
        QuadraticNetwork.of(torch.ones(4, 5), v)


@pytest.mark.parametrize(
    "wrong", [{"modulus": 1}, {"width": 0}, {"seed": 0.5}, {"scale": 0.0}, {"scale": float("nan")}, {"scale": True}]
)
def test_bad_networks_are_refused(wrong):
    with pytest.raises(InputError, match="expected"):
        QuadraticNetwork(**{"modulus": 5, "width": 4, **wrong})


def test_centred_loss_is_the_projected_norm():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    classes = torch.tensor([0, 1, 2, 3, 0, 1])
    targets = torch.nn.functional.one_hot(classes, 4).double()
    project = torch.eye(6, dtype=torch.float64) - torch.ones(6, 6, dtype=torch.float64) / 6
    expected = 0.5 * (project @ (targets - outputs)).square().sum()
    losses = centred_l2(outputs, targets)
    assert losses.shape == (6,)
    assert torch.allclose(losses.sum(), expected)
    assert torch.allclose(centred_l2(outputs, classes), losses)
    shifted = outputs + torch.tensor([1.0, -2.0, 3.0, 0.0], dtype=torch.float64)
    assert torch.allclose(centred_l2(shifted, targets), losses)


def test_centring_is_along_examples_not_outputs():
    outputs, targets = torch.eye(3) + torch.arange(3.0)[:, None], torch.eye(3)
    assert float(centred_l2(outputs, targets).sum()) > 1  # a shift of an example's outputs is not taken off


def test_mean_over_all_minibatches_is_the_full_loss_up_to_the_stated_factor():
    generator = torch.Generator().manual_seed(1)
    n, size = 6, 3
    outputs = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    targets = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    batches = [centred_l2(outputs[list(i)], targets[list(i)]).mean() for i in itertools.combinations(range(n), size)]
    factor = (size - 1) / size * n / (n - 1)
    assert torch.allclose(torch.stack(batches).mean(), factor * centred_l2(outputs, targets).mean())


def test_wrong_targets_are_refused():
    with pytest.raises(InputError, match="targets"):
        centred_l2(torch.zeros(4, 3), torch.zeros(4, 2))


def test_landscape_takes_the_centred_loss_and_says_that_it_couples_examples():
    task = ModularTask(5)
    net = QuadraticNetwork(5, 6)
    land = Landscape(net, task.data(), centred_l2)
    assert land.n == 10
    assert [f.code for f in land.findings] == ["DATA502"]
    x, y = task.data()
    assert float(land.loss()) == pytest.approx(float(centred_l2(net(x), y).mean().detach()), rel=1e-5)


def test_transformer_learns_and_can_be_batched():
    task = ModularTask(5)
    pairs, classes = task.data("all", inputs="tokens", targets="classes")
    net = ModularTransformer(5, layers=2, width=16, heads=2)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(pairs), classes).backward()
        optimizer.step()
    assert float((net(pairs).argmax(1) == classes).double().mean()) > 0.9

    def loss(params):
        return torch.nn.functional.cross_entropy(functional_call(net, params, pairs), classes)

    params = {name: torch.stack([p.detach(), 0.5 * p.detach()]) for name, p in net.named_parameters()}
    both = vmap(grad(loss))(params)
    alone = grad(loss)({name: p[1] for name, p in params.items()})
    assert all(torch.allclose(both[name][1], alone[name], atol=1e-5) for name in alone)


def test_transformer_does_not_look_ahead():
    net = ModularTransformer(7, layers=2, width=16, heads=4)
    seen = []
    net.blocks[1].register_forward_hook(lambda _module, _given, output: seen.append(output))
    net(torch.tensor([[3, 1]]))
    net(torch.tensor([[3, 5]]))
    assert torch.allclose(seen[0][:, 0], seen[1][:, 0])
    assert not torch.allclose(seen[0][:, 1], seen[1][:, 1])


@pytest.mark.parametrize("wrong", [{"heads": 3}, {"layers": 0}, {"width": 1.5}, {"modulus": 0}])
def test_bad_transformers_are_refused(wrong):
    with pytest.raises(InputError, match="expected"):
        ModularTransformer(**{"modulus": 5, "width": 16, "heads": 4, **wrong})
