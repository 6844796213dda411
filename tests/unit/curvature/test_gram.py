"""The Gram engine against gradients and Jacobians taken one by one."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crunode import Landscape
from crunode.curvature.gram import damped_solve, example_rows, ggn_eigenvalues, tangent_kernel
from crunode.curvature.signals import DirectRows, OuterRows, Recorder
from crunode.errors import InputError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


class Twice(nn.Module):
    """One layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).tanh())


class Aside(nn.Module):
    """A weight that is also used outside its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.layer(x).tanh(), self.layer.weight)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 5, bias=False), nn.Tanh(), nn.Linear(5, 3)
    )


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(3, 4, 2, dilation=1),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def other_convolutions() -> nn.Module:
    layers = [
        nn.Conv2d(2, 4, 3, padding="same", groups=2),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(144, 3),
    ]
    return nn.Sequential(*layers)


def volumes() -> nn.Module:
    return nn.Sequential(nn.Conv3d(2, 3, 2, padding=1, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3))


def sequence() -> nn.Module:
    layers = [nn.Conv1d(4, 3, 2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)]
    return nn.Sequential(nn.LayerNorm((4, 3)), *layers)


def positions() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Flatten())


MODELS = {
    "mlp": (mlp, (4,), "layers"),
    "conv": (conv, (2, 6, 6), "layers"),
    "other convolutions": (other_convolutions, (2, 6, 6), "layers"),
    "volumes": (volumes, (2, 3, 3, 3), "layers"),
    "sequence": (sequence, (4, 3), "layers"),
    "positions": (positions, (4, 3), "layers"),
    "tied": (Tied, (4,), "examples"),
    "twice": (Twice, (4,), "examples"),
    "aside": (Aside, (4,), "examples"),
    "attention": (Attention, (5, 4), "examples"),
}


def build(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, str]:
    torch.manual_seed(3)
    make, shape, how = MODELS[name]
    return make().to(dtype), torch.randn(6, *shape, dtype=dtype), how


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """(examples, outputs, parameters), one backward pass for each number."""
    rows = []
    for example in x:
        for value in model(example[None]).reshape(-1):
            parts = torch.autograd.grad(value, list(model.parameters()), retain_graph=True, allow_unused=True)
            whole = [torch.zeros_like(p) if g is None else g for g, p in zip(parts, model.parameters(), strict=True)]
            rows.append(torch.cat([g.reshape(-1) for g in whole]))
    return torch.stack(rows).reshape(len(x), -1, rows[0].numel())


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_the_gradients_of_single_examples(name: str) -> None:
    model, x, how = build(name)
    free = dict(model.named_parameters())
    recorder = Recorder(model, free)
    with recorder:
        outputs = model(x)
    generator = torch.Generator().manual_seed(0)
    cotangents = [torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype) for _ in range(2)]

    def single(weights: dict[str, Tensor], batch: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (batch,))

    rows, found_how = example_rows(recorder, outputs, cotangents, free, single=single, batch=x)
    dense = jacobian(model, x)
    want = torch.cat([torch.einsum("bc,bcd->bd", c.reshape(6, -1), dense) for c in cotangents])
    assert found_how == how
    torch.testing.assert_close(rows.gram(), want @ want.T, rtol=1e-10, atol=1e-12)
    c = torch.randn(12, generator=generator, dtype=torch.float64)
    parts = rows.combined(c)
    flat = torch.cat([parts[n].reshape(-1) if n in parts else torch.zeros(p.numel()).double() for n, p in free.items()])
    torch.testing.assert_close(flat, want.T @ c, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["tied", "twice", "aside", "attention"])
def test_without_a_single_example_rows_come_from_passes(name: str) -> None:
    model, x, _ = build(name)
    free = dict(model.named_parameters())
    recorder = Recorder(model, free)
    with recorder:
        outputs = model(x)
    ones = torch.ones_like(outputs)
    rows, how = example_rows(recorder, outputs, [ones], free)
    want = jacobian(model, x).sum(1)
    assert how == "passes"
    torch.testing.assert_close(rows.gram(), want @ want.T, rtol=1e-10, atol=1e-12)


def test_coupled_examples_are_seen_and_differentiated_as_they_are() -> None:
    model, x, _ = build("mlp")
    free = dict(model.named_parameters())
    recorder = Recorder(model, free)
    with recorder:
        outputs = model(x)
        losses = (outputs - outputs.mean(0)).square().sum(1)
    rows, how = example_rows(recorder, losses, [torch.ones_like(losses)], free)
    each = [torch.autograd.grad(v, list(free.values()), retain_graph=True) for v in losses]
    want = torch.stack([torch.cat([g.reshape(-1) for g in parts]) for parts in each])
    assert how == "passes"
    torch.testing.assert_close(rows.gram(), want @ want.T, rtol=1e-10, atol=1e-12)


def test_a_layer_that_sees_as_many_places_as_there_are_examples_is_not_taken_for_one_of_examples() -> None:
    """Weights applied to a fixed table, whose length happens to be the batch size."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.layer(torch.eye(6, 4, dtype=x.dtype)).tanh().sum(0)[:, None]

    torch.manual_seed(0)
    model, x = Table().double(), torch.randn(6, 4, dtype=torch.float64)
    free = dict(model.named_parameters())
    recorder = Recorder(model, free)
    with recorder:
        outputs = model(x)
    rows, how = example_rows(recorder, outputs, [torch.ones_like(outputs)], free)
    want = jacobian(model, x)[:, 0]
    assert how == "passes"
    torch.testing.assert_close(rows.gram(), want @ want.T)


def test_only_free_parameters_count() -> None:
    model, x, _ = build("mlp")
    free = {n: p for n, p in model.named_parameters() if n in ("0.bias", "2.weight")}
    recorder = Recorder(model, free)
    with recorder:
        outputs = model(x)
    blocks = recorder.rows(outputs, [torch.ones_like(outputs)])
    assert blocks is not None
    assert [(type(b), b.weight, b.bias) for b in blocks] == [(OuterRows, None, "0.bias"), (OuterRows, "2.weight", None)]
    rows, _ = example_rows(recorder.__class__(model, free), outputs, [torch.ones_like(outputs)], free)
    assert all(isinstance(b, DirectRows) for b in rows.blocks)  # nothing was recorded: found by passes
    both = [b.overlaps() * (b.signals[0] @ b.signals[0].T) for b in blocks]
    torch.testing.assert_close(rows.gram(), both[0] + both[1])


def test_recording_leaves_the_model_as_it_was() -> None:
    model, x, _ = build("conv")
    recorder = Recorder(model, [n for n, _ in model.named_parameters()])
    with pytest.raises(RuntimeError), recorder:
        model(x[:, :1])
    assert all(not m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("name", MODELS)
def test_tangent_kernel_is_the_product_of_jacobians(name: str) -> None:
    model, x, _ = build(name)
    dense = jacobian(model, x).flatten(0, 1)
    y = model(x).detach()
    torch.testing.assert_close(
        tangent_kernel(Landscape(model, (x, y), "gaussian")), dense @ dense.T, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("name", ["mlp", "conv", "tied"])
def test_eigenvalues_are_those_of_the_dense_gauss_newton_matrix(name: str) -> None:
    model, x, _ = build(name)
    outputs = model(x).detach().reshape(6, -1)
    labels = torch.arange(6) % outputs.shape[1]
    p = outputs.softmax(1)
    hessians = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    dense = jacobian(model, x)
    want = torch.linalg.eigvalsh(torch.einsum("bcd,bce,bef->df", dense, hessians, dense) / 6).flip(0)
    found = ggn_eigenvalues(Landscape(model, (x, labels), F.cross_entropy))
    assert len(found) == 6 * (outputs.shape[1] - 1)
    size = min(len(found), len(want))
    torch.testing.assert_close(found[:size], want[:size].clamp(min=0), rtol=1e-8, atol=1e-12)
    assert float(want[size:].abs().sum()) < 1e-12


def test_a_restricted_landscape_has_the_kernel_of_its_parameters() -> None:
    model, x, _ = build("mlp")
    land = Landscape(model, (x, model(x).detach()), "gaussian").restrict("0.*")
    dense = jacobian(model, x)[:, :, :25].flatten(0, 1)
    torch.testing.assert_close(tangent_kernel(land), dense @ dense.T)


def test_a_kernel_that_does_not_fit_is_refused() -> None:
    model = nn.Linear(1, 200)
    with pytest.raises(InputError, match="fits memory"):
        tangent_kernel(Landscape(model, (torch.zeros(100, 1), torch.zeros(100, 200)), "gaussian"))


def test_solve_meets_graded_matrices() -> None:
    """Gradients of very different size are no reason to call a matrix singular."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(8, 20, generator=generator, dtype=torch.float64) * 10.0 ** -torch.arange(0, 16, 2)[:, None]
    right = torch.randn(8, generator=generator, dtype=torch.float64)
    found, singular = damped_solve(rows @ rows.T, 0.0, right)
    assert not singular
    scaled = (rows / rows.norm(dim=1, keepdim=True)).double()
    want = torch.linalg.solve(scaled @ scaled.T, right / rows.norm(dim=1)) / rows.norm(dim=1)
    torch.testing.assert_close(found, want, rtol=1e-8, atol=0)


def test_solve_tells_repeated_rows() -> None:
    rows = torch.ones(3, 5, dtype=torch.float64)
    found, singular = damped_solve(rows @ rows.T, 1e-14, torch.ones(3, dtype=torch.float64))
    assert singular
    torch.testing.assert_close(rows.T @ found, torch.full((5,), 0.2, dtype=torch.float64), rtol=1e-6, atol=0)
    assert not damped_solve(rows @ rows.T, 1.0, torch.ones(3, dtype=torch.float64))[1]


def test_solve_of_numbers_that_are_not_finite_raises() -> None:
    with pytest.raises(InputError, match="finite"):
        damped_solve(torch.full((2, 2), float("nan"), dtype=torch.float64), 1.0, torch.ones(2, dtype=torch.float64))
