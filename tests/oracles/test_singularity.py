"""The singularity report on networks whose flat directions are known, and Murfet et al. 2020, appendix A.1."""

import json
import math

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.examples import toys

nn = torch.nn


def filled(net, seed=0):
    generator = torch.Generator().manual_seed(seed)
    net = net.double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return net


def realised(net, inputs, n=150, loss="gaussian", seed=5):
    x = torch.randn(n, inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y = net(x).detach()
    return cr.Landscape(net, (x, y.argmax(1) if loss == "cross-entropy" else y), loss)


def kinds(report):
    return {kind: sum(x.new for x in report.flat if x.kind == kind) for kind in {x.kind for x in report.flat}}


def test_a_regular_model():
    report = cr.singularity(realised(filled(nn.Linear(3, 2)), 3))
    assert report.verdict == "regular"
    assert report.rank == report.parameters == 8
    assert report.flat == ()
    assert report.hessian_zero == report.hessian_negative == 0
    assert float(report.coefficient.value) == 4


@pytest.mark.parametrize("hidden", [1, 4])
def test_relu_scalings_are_one_for_each_hidden_unit(hidden):
    """Lemma A.1: with c > 1 layers each hidden unit gives one relation."""
    report = cr.singularity(realised(filled(nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 1))), 2))
    assert report.verdict == "singular"
    assert kinds(report) == {"ReLU scalings": hidden}
    assert report.unexplained == 0
    assert report.rank == report.parameters - hidden
    assert report.hessian_zero == hidden
    assert all(x.change < 1e-7 for x in report.flat)


@pytest.mark.parametrize("units", [3, 4, 5])
def test_symmetric_networks_of_murfet_2020(units):
    """s_m: units of weights g^j (1, 0) with g a rotation by 2π/m, and bias −1/3: rank 3m + 1, λ = 5, 13/2, 8."""
    net = nn.Sequential(nn.Linear(2, units), nn.ReLU(), nn.Linear(units, 1)).double()
    angles = 2 * math.pi * torch.arange(units, dtype=torch.float64) / units
    with torch.no_grad():
        net[0].weight.copy_(torch.stack([angles.cos(), angles.sin()], 1))
        net[0].bias.fill_(-1 / 3)
        net[2].weight.fill_(1.0)
        net[2].bias.zero_()
    x = 2 * torch.rand(1000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    report = cr.singularity(cr.Landscape(net, (x, net(x).detach()), "gaussian"))
    assert report.rank == 3 * units + 1
    assert kinds(report) == {"ReLU scalings": units}
    assert report.unexplained == 0
    assert report.coefficient.value * 2 == 3 * units + 1


def test_deep_relu_network():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    report = cr.singularity(realised(filled(net, 3), 2, n=400))
    assert sum(x.new for x in report.flat if x.kind == "ReLU scalings") == 6


def test_the_relation_of_lemma_a1_holds():
    """Σ w ∂/∂w (incoming) − Σ w ∂/∂w (outgoing) annihilates the outputs, at a point that realises nothing."""
    net = filled(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 7)
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    names = {k: v.detach() for k, v in net.named_parameters()}
    slopes = torch.func.jacrev(lambda p: torch.func.functional_call(net, p, x))(names)
    for j in range(4):
        incoming = slopes["0.weight"][:, :, j] @ names["0.weight"][j] + slopes["0.bias"][:, :, j] * names["0.bias"][j]
        outgoing = slopes["2.weight"][:, :, :, j] @ names["2.weight"][:, j]
        assert float((incoming - outgoing).abs().max()) < 1e-12
        assert float(incoming.abs().max()) > 1e-3


def test_changes_of_basis_of_linear_layers():
    """Two linear layers of width 3 have GL(3), and a map of rank 3: all flat directions."""
    net = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 4, bias=False))
    report = cr.singularity(realised(filled(net), 4))
    assert kinds(report) == {"changes of basis between linear layers": 9}
    assert report.unexplained == 0
    assert report.rank == 15


def test_reduced_rank_at_its_most_singular_point():
    report = cr.singularity(toys.reduced_rank(6, 4, 6, rank=2))
    assert report.verdict == "singular"
    assert report.rank == 20
    assert (float(report.coefficient.bounds[0]), float(report.coefficient.bounds[1])) == (10.0, 13.5)
    assert report.unexplained > 0  # the kernel of J is larger than any symmetry here


def test_dead_units():
    net = filled(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    with torch.no_grad():
        net[0].bias[1] = -100.0
    report = cr.singularity(realised(net, 2))
    found = kinds(report)
    # Two of the unit's four directions count as its scaling and the rest.
    assert found["ReLU scalings"] == 3
    assert found["outgoing weights of dead units"] + found["incoming weights of dead or unread units"] == 3
    assert report.unexplained == 0


def test_units_that_nothing_reads():
    net = filled(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
    with torch.no_grad():
        net[2].weight[:, 0] = 0.0
    report = cr.singularity(realised(net, 2))
    assert kinds(report) == {"incoming weights of dead or unread units": 3}
    assert report.unexplained == 0


def test_duplicate_units():
    """Two equal tanh units: weight passes between them; their difference is flat to first order only."""
    net = filled(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
    with torch.no_grad():
        net[0].weight[1], net[0].bias[1] = net[0].weight[0], net[0].bias[0]
    report = cr.singularity(realised(net, 2))
    assert kinds(report) == {"exchanges between duplicate units": 1}
    assert report.unexplained == 3


def test_logits_may_shift():
    report = cr.singularity(realised(filled(nn.Linear(3, 4)), 3, loss="cross-entropy"))
    assert kinds(report) == {"shifts of all logits": 4}
    assert report.rank == 12
    assert report.unexplained == 0


def test_fisher_is_the_mean_of_products_of_derivatives():
    """I_ij = E⟨∂_i f, ∂_j f⟩ for unit variance: without the factor of eq. 13 in the paper."""
    net = filled(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)))
    land = realised(net, 2, n=40)
    names, x = dict(net.named_parameters()), next(iter(land.passes()))[0]
    parts = torch.func.jacrev(lambda p: torch.func.functional_call(net, p, x))(names)
    jacobian = torch.cat([parts[k].detach().reshape(80, -1) for k in names], 1)
    exact = torch.linalg.eigvalsh(jacobian.T @ jacobian / 40).flip(0).numpy()
    np.testing.assert_allclose(cr.singularity(land).fisher, exact, rtol=1e-8, atol=1e-12)


def test_a_potential_has_only_a_hessian():
    report = cr.singularity(cr.Landscape.of_function(lambda w: w[0] ** 2 + (w[1] * w[2]) ** 2, torch.zeros(3).double()))
    assert report.verdict == "singular"
    assert (report.rank, report.hessian_zero, report.hessian_negative) == (1, 2, 0)
    assert report.unexplained is None


def test_a_saddle_has_negative_curvature():
    report = cr.singularity(cr.Landscape.of_function(lambda w: w[0] ** 2 - w[1] ** 2, torch.zeros(2).double()))
    assert report.hessian_negative == 1
    assert report.coefficient is None


def test_text_and_dict():
    report = cr.singularity(realised(filled(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))), 2))
    assert str(report).startswith("singular: rank 7 of 9")
    assert json.loads(json.dumps(report.to_dict()))["rank"] == 7


def test_bad_input():
    with pytest.raises(cr.InputError, match="Landscape"):
        cr.singularity(nn.Linear(1, 1))
    with pytest.raises(cr.InputError, match="seed"):
        cr.singularity(toys.quadratic(2), seed=-1)


SIZE = 2.0


def divergence(b):
    """Example A.4, times 2N: N b² − 2/3 b³ for b ≥ 0 and N b² − b³/3 for b ≤ 0."""
    return SIZE * b**2 - (2 / 3 if b >= 0 else 1 / 3) * b**3


@pytest.mark.parametrize("b", [-1.5, -0.3, 0.4, 1.9])
def test_the_divergence_of_a_kink_is_as_stated(b):
    """K(b) = ∫ q(x) (relu(x − b) − relu(x))² dx for x uniform on [−N, N], by the midpoint rule and by Monte Carlo."""
    count = 400_000
    x = (np.arange(count) + 0.5) / count * 2 * SIZE - SIZE
    values = (np.maximum(x - b, 0) - np.maximum(x, 0)) ** 2
    assert 2 * SIZE * values.mean() == pytest.approx(divergence(b), abs=1e-9)
    drawn = np.random.default_rng(0).uniform(-SIZE, SIZE, 100_000)
    chance = (np.maximum(drawn - b, 0) - np.maximum(drawn, 0)) ** 2
    assert abs(2 * SIZE * chance.mean() - divergence(b)) < 5 * 2 * SIZE * chance.std() / math.sqrt(len(drawn))


def test_the_third_derivative_jumps_at_zero():
    """Second derivatives agree (2N), third ones are −4 on the right and −2 on the left: K is C² and not analytic."""
    step = 1e-2

    def differences(sign):
        k = [divergence(sign * j * step) for j in range(4)]
        second = (k[2] - 2 * k[1] + k[0]) / step**2
        third = sign * (k[3] - 3 * k[2] + 3 * k[1] - k[0]) / step**3
        return second - sign * third * step, third

    (right_second, right), (left_second, left) = differences(1), differences(-1)
    assert right == pytest.approx(-4, abs=1e-6)
    assert left == pytest.approx(-2, abs=1e-6)
    assert right_second == pytest.approx(2 * SIZE, abs=1e-6)
    assert left_second == pytest.approx(2 * SIZE, abs=1e-6)


def test_the_model_of_the_example_is_regular():
    """Half of the inputs are above the kink, so that its one parameter has information 1/2, and λ = 1/2."""
    x = torch.linspace(-SIZE, SIZE, 2001, dtype=torch.float64)[:, None]

    class Kink(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.Parameter(torch.full((1,), 0.0005, dtype=torch.float64))

        def forward(self, x):
            return torch.relu(x - self.b)

    net = Kink()
    report = cr.singularity(cr.Landscape(net, (x, net(x).detach()), "gaussian"))
    assert report.verdict == "regular"
    assert report.fisher[0] == pytest.approx(0.5, abs=0.01)
