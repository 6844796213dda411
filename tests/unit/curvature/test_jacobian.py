"""Jacobians against plain autograd and closed forms, for models of many kinds; nothing is changed by looking."""

import copy
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import crunode as cr
from crunode.curvature.jacobian import Evaluation, NoOutputs, hessian_sketch, jacobian_rows, jacobian_sketch
from crunode.curvature.spectrum import spectrum


def data(rows=12, inputs=3, seed=0):
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed))


def net(*widths, act=nn.Tanh, seed=0, bias=True):
    torch.manual_seed(seed)
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), act()]
    return nn.Sequential(*layers[:-1])


def plain_jacobian(model, x):
    """One backward pass for each example and output, in double precision."""
    model = net_copy(model)
    rows = []
    for example in x.double():
        for value in model(example[None]).flatten():
            gradients = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
            rows.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(rows)


def net_copy(model):
    return copy.deepcopy(model).double()


def stacked(land, **options):
    seen = Evaluation(land)
    return torch.cat([b.jacobian for b in jacobian_rows(seen, torch.arange(land.data.rows), **options)])


def test_rows_are_those_of_plain_autograd():
    x, model = data(), net(3, 4, 2)
    land = cr.Landscape(model, (x, torch.zeros(12, 2)), "gaussian")
    assert torch.allclose(stacked(land), plain_jacobian(model, x), rtol=1e-12, atol=1e-14)


def test_cross_entropy_gives_the_fisher_matrix():
    x, model = data(), net(3, 4, 3)
    land = cr.Landscape(model, (x, torch.zeros(12, dtype=torch.long)), F.cross_entropy)
    plain = plain_jacobian(model, x).reshape(12, 3, -1)
    p = net_copy(model)(x.double()).softmax(1).detach()
    fisher = torch.einsum("nip,nij,njq->pq", plain, torch.diag_embed(p) - p[:, :, None] * p[:, None], plain)
    rows = stacked(land)
    assert rows.shape[0] == 24  # a shift of all logits is not seen
    assert torch.allclose(rows.T @ rows, fisher, atol=1e-12)


def test_mean_over_outputs_is_weighted_as_the_loss_weights_it():
    x, model = data(), net(3, 2)
    land = cr.Landscape(model, (x, model(x).detach()), F.mse_loss)
    rows = stacked(land)
    hessian = hessian_sketch(Evaluation(land), None, seed=0)
    assert torch.allclose(rows.T @ rows / 12, hessian, atol=1e-6)  # the Hessian where the data is realised


@pytest.mark.parametrize("kind", ["tied", "restricted", "frozen", "batchnorm", "dropout", "integer inputs", "in place"])
def test_models_of_many_kinds(kind):
    x, y = data(), torch.zeros(12, 3)
    model, pattern = net(3, 3, 3), None
    if kind == "tied":
        model[2].weight = model[0].weight
    elif kind == "restricted":
        pattern = "2.*"
    elif kind == "frozen":
        model[0].requires_grad_(False)
    elif kind == "batchnorm":
        model.insert(1, nn.BatchNorm1d(3))
        model(x)
    elif kind == "dropout":
        model.insert(1, nn.Dropout(0.5))
    elif kind == "integer inputs":
        model = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 3))
        x = torch.randint(5, (12, 3), generator=torch.Generator().manual_seed(0))
    else:
        model[1] = nn.ReLU(inplace=True)
    land = cr.Landscape(model, (x, y), "gaussian", params=pattern)
    before, state = land.fingerprint(), torch.get_rng_state()
    rows = stacked(land)
    assert land.fingerprint() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert rows.shape == (36, land.dim)
    step = torch.randn(land.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    seen = Evaluation(land)
    batch = next(iter(land.passes()))
    ends = [seen.outputs(seen.center + sign * 1e-6 * step, batch) for sign in (1, -1)]
    slope = (ends[0] - ends[1]).flatten().detach() / 2e-6
    assert torch.allclose(rows @ step, slope, atol=1e-6)


def test_a_model_that_cannot_be_batched_is_looped_over():
    class Stubborn(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([0.5, -1.0]))

        def forward(self, x):
            return self.w * x if float(x.sum()) > 0 else 2 * self.w * x  # looks at values

    x = data(6, 2)
    land = cr.Landscape(Stubborn(), [(row[None], torch.zeros(1, 2)) for row in x], "gaussian")
    rows = stacked(land)
    factor = torch.where(x.sum(1, keepdim=True) > 0, 1.0, 2.0)
    wanted = torch.diag_embed((factor * x).double()).reshape(-1, 2)
    assert torch.allclose(rows, wanted)


def test_batches_of_unlike_shapes():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x.mean(1) @ self.w[:, None]

    batches = [(torch.ones(2, 3, 2), torch.zeros(2, 1)), (2 * torch.ones(1, 5, 2), torch.zeros(1, 1))]
    land = cr.Landscape(Mean(), batches, "gaussian")
    assert stacked(land).tolist() == [[1, 1], [1, 1], [2, 2]]


def test_a_sketch_has_the_rank_of_the_whole():
    x, model = data(8), net(3, 4, 2)
    land = cr.Landscape(model, (x, torch.zeros(8, 2)), "gaussian")
    small = jacobian_sketch(Evaluation(land), torch.arange(8), 24, seed=0)
    whole = stacked(land)
    assert torch.linalg.matrix_rank(small) == torch.linalg.matrix_rank(whole) == 16
    mean = (small.square().sum() / whole.square().sum()).item()
    assert 0.5 < mean < 2


def test_a_large_model_goes_through_the_sketch(monkeypatch):
    x, model = data(8), net(3, 4, 2)
    land = cr.Landscape(model, (x, torch.zeros(8, 2)), "gaussian")
    direct = spectrum(land)
    monkeypatch.setattr("crunode.curvature.spectrum._MEMORY", 10)
    sketched = spectrum(land)
    assert (direct.method, sketched.method) == ("jacobian", "jacobian sketch")
    assert direct.rank.rank == sketched.rank.rank == 16


def test_few_rows_give_a_lower_rank_and_the_same_one_again():
    x, model = data(40), net(3, 4, 2)
    land = cr.Landscape(model, (x, torch.zeros(40, 2)), "gaussian")
    few, again, all_rows = spectrum(land, rows=10, seed=3), spectrum(land, rows=10, seed=3), spectrum(land)
    assert few.rank == again.rank
    assert (few.rows, few.of, few.examples, few.complete) == (10, 80, 5, False)
    assert few.rank.rank == 10 < all_rows.rank.rank == land.dim


def test_whole_numbers_are_ranked_over_a_prime():
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2, 3], [2, 4, 6]]))
        model[1].weight.copy_(torch.tensor([[1.0, 1], [0, 3], [2, -1]]))
    x = torch.randint(-4, 5, (20, 3), generator=torch.Generator().manual_seed(0)).float()
    found = spectrum(cr.Landscape(model, (x, model(x).detach()), "gaussian"))
    assert found.exact
    a, b = (layer.weight.detach().double() for layer in model)
    tangent = torch.cat([torch.kron(b, torch.eye(3)).T, torch.kron(torch.eye(3), a)]).numpy()
    assert found.rank.rank == np.linalg.matrix_rank(tangent)


def test_losses_without_outputs_are_refused_or_seen_through_the_hessian():
    def whole(model, batch):
        return 0.5 * (model(batch[0]) - batch[1]).square().sum(1)

    x, model = data(), net(3, 2)
    land = cr.Landscape(model, (x, model(x).detach()), whole)
    with pytest.raises(NoOutputs, match="as a whole"):
        Evaluation(land).outputs_per_example()
    found = spectrum(land)
    assert found.method == "hessian"
    assert "as a whole" in found.reason
    assert found.rank.rank == land.dim == 8
    rows = stacked(cr.Landscape(model, (x, model(x).detach()), "gaussian"))
    wanted = torch.linalg.eigvalsh(rows.T @ rows / 12).flip(0)
    assert torch.allclose(torch.tensor(found.curvatures), wanted, atol=1e-7)


def test_a_hessian_on_random_directions_is_a_part_of_it():
    land = cr.Landscape.of_function(lambda w: (w[:4] ** 2).sum() + w[4:].prod() ** 2, torch.zeros(7))
    part = hessian_sketch(Evaluation(land), 5, seed=0)
    assert part.shape == (5, 5)
    assert torch.linalg.matrix_rank(part) == 4
    assert torch.linalg.eigvalsh(part).min() > -1e-12
