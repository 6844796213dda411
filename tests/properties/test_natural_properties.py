"""What holds for natural gradient steps of any model, batch and smoothing."""

import copy

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from crunode.curvature.natural import NaturalGradient
from crunode.curvature.online_fisher import online_direction

SIZES = st.integers(1, 5)
ALPHAS = st.floats(1e-3, 1e3)
KINDS = st.sampled_from(["empirical", "true"])


def problem(inputs: int, hidden: int, count: int, seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 3)).double()
    return model, torch.randn(count, inputs, dtype=torch.float64), torch.randint(3, (count,))


def direction(model: nn.Module, x: Tensor, y: Tensor, kind: str, alpha: float, scale: float = 1.0) -> Tensor:
    model = copy.deepcopy(model)
    before = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    if scale == 1.0:
        NaturalGradient(model, F.cross_entropy, lr=1.0, fisher=kind, alpha=alpha, epsilon=1e-30).step(x, y)
    else:
        optimizer = NaturalGradient(model, lr=1.0, alpha=alpha, epsilon=1e-30)
        optimizer.step(lambda: scale * F.cross_entropy(model(x), y, reduction="none"))
    return before - torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@settings(max_examples=15)
@given(SIZES, SIZES, st.integers(2, 7), ALPHAS, KINDS, st.integers(0, 99))
def test_the_step_solves_the_smoothed_system(
    inputs: int, hidden: int, count: int, alpha: float, kind: str, seed: int
) -> None:
    model, x, y = problem(inputs, hidden, count, seed)
    rows = []
    for value in model(x).reshape(-1):
        parts = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
        rows.append(torch.cat([g.reshape(-1) for g in parts]))
    jacobian = torch.stack(rows).reshape(count, 3, -1)
    p = model(x).detach().softmax(1)
    slopes = p - F.one_hot(y, 3)
    gradients = torch.einsum("bc,bcd->bd", slopes, jacobian)
    middle = (
        torch.diag_embed(p) - p[:, :, None] * p[:, None] if kind == "true" else slopes[:, :, None] * slopes[:, None]
    )
    fisher = torch.einsum("bcd,bce,bef->df", jacobian, middle, jacobian) / count
    kappa = alpha / len(fisher) * float(fisher.trace())
    found = direction(model, x, y, kind, alpha)
    torch.testing.assert_close(
        fisher @ found + kappa * found, gradients.mean(0), rtol=0, atol=1e-9 * float(gradients.mean(0).norm())
    )


@settings(max_examples=10)
@given(st.integers(2, 7), ALPHAS, KINDS, st.integers(0, 99))
def test_the_order_of_examples_does_not_matter(count: int, alpha: float, kind: str, seed: int) -> None:
    model, x, y = problem(3, 4, count, seed)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    one, other = (direction(model, *pair, kind, alpha) for pair in ((x, y), (x[order], y[order])))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9 * float(one.norm()))


@settings(max_examples=10)
@given(st.floats(1e-2, 1e2), ALPHAS, st.integers(0, 99))
def test_a_loss_times_c_has_steps_over_c(scale: float, alpha: float, seed: int) -> None:
    """F and κ grow with the square of the loss's scale, the gradient with the scale."""
    model, x, y = problem(3, 4, 5, seed)
    one, scaled = direction(model, x, y, "empirical", alpha), direction(model, x, y, "empirical", alpha, scale)
    torch.testing.assert_close(scaled * scale, one, rtol=0, atol=1e-9 * float(one.norm()))


@settings(max_examples=15)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.floats(1e-4, 1e4), st.integers(0, 99))
def test_online_directions_keep_the_norm_and_point_downhill(shape: list[int], alpha: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    states: list[dict] = [{} for _ in shape]
    for _ in range(6):
        gradient = torch.randn(shape, generator=generator, dtype=torch.float64)
        found = online_direction(gradient, states, alpha=alpha, epsilon=1e-10)
        torch.testing.assert_close(found.norm(), gradient.norm())
        assert float((found * gradient).sum()) > 0
