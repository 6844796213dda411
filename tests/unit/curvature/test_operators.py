"""Every operator against dense autodiff, for models of many kinds; what cannot be had is refused."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import crunode as cr
from crunode.curvature import products
from crunode.curvature.operators import Operator, fisher, ggn, hessian, jacobian, ntk, residual_part
from crunode.errors import InputError

ROWS = 7


class Attention(nn.Module):
    """One head of torch's attention over four positions, through its fast kernels."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.head(mixed.flatten(1))


class Tied(nn.Module):
    """The same matrix used as encoder, transposed as decoder, and by a second name."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) @ self.first.weight


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3)), (ROWS, 3)


def relu():
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3)), (ROWS, 3)


def conv():
    layers = nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(2, 2, 2), nn.SiLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8, 3)), (ROWS, 1, 6, 6)


def attention():
    return Attention(), (ROWS, 4, 4)


def tied():
    return Tied(), (ROWS, 3)


MODELS = [mlp, relu, conv, attention, tied]


def landscape(make, loss, *, dtype=torch.float64, **options):
    torch.manual_seed(3)
    model, shape = make()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randn(ROWS, 3, generator=generator, dtype=torch.float64).to(dtype)
    labels = y.argmax(1) if loss in ("cross-entropy", F.cross_entropy) else (y > 0).to(dtype)
    return cr.Landscape(model.to(dtype), (x, y if loss in ("gaussian", F.mse_loss) else labels), loss, **options)


def second_derivative(function):
    """Backward twice: the first use of forward derivatives takes seconds to load."""
    return torch.func.jacrev(torch.func.jacrev(function))


@functools.cache
def dense(make, loss):
    """H, GGN, J, S, r and per-example gradients by `torch.func` on the whole data."""
    land = landscape(make, loss)
    (batch,) = land.passes()

    def outputs(w):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return land.batch_outputs(w, batch)

    def losses(w):
        return land.loss_form.fn(outputs(w), batch[-1])

    def of_outputs(f):
        return land.loss_form.fn(f.reshape(ROWS, 3), batch[-1]).sum()

    flat = outputs(land.center).reshape(-1)
    first = torch.func.jacrev(outputs)(land.center).reshape(-1, land.dim)
    second = second_derivative(of_outputs)(flat)
    slopes = torch.func.jacrev(losses)(land.center)
    return {
        "hessian": second_derivative(lambda w: losses(w).mean())(land.center).detach(),
        "ggn": (first.T @ second @ first / ROWS).detach(),
        "jacobian": first.detach(),
        "empirical": (slopes.T @ slopes / ROWS).detach(),
    }


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10 + 1e-9 * float(expected.abs().max()))


@pytest.mark.heavy
@pytest.mark.parametrize("loss", ["cross-entropy", "gaussian", "bernoulli"])
@pytest.mark.parametrize("make", MODELS, ids=lambda m: m.__name__)
def test_operators_are_those_of_dense_autodiff(make, loss):
    land, plain = landscape(make, loss), dense(make, loss)
    assert_same(hessian(land).dense(), plain["hessian"])
    assert_same(ggn(land).dense(), plain["ggn"])
    assert_same(residual_part(land).dense(), plain["hessian"] - plain["ggn"])
    assert_same(jacobian(land).dense(), plain["jacobian"])
    assert_same(ntk(land).dense(), plain["jacobian"] @ plain["jacobian"].T)
    assert_same(fisher(land).dense(), plain["ggn"])
    assert_same(fisher(land, "empirical").dense(), plain["empirical"])


@pytest.mark.heavy
@pytest.mark.parametrize("loss", ["cross-entropy", "gaussian"])
@pytest.mark.parametrize("make", [mlp, conv, attention], ids=lambda m: m.__name__)
def test_chunks_that_are_kept_or_not_give_the_same(make, loss, monkeypatch):
    land, plain = landscape(make, loss), dense(make, loss)
    monkeypatch.setattr(cr.Landscape, "chunk_rows", lambda self, chains=1: 3)
    for room in (0, 1 << 30):
        monkeypatch.setattr(products, "_ROOM", room)
        assert_same(hessian(land).dense(), plain["hessian"])
        assert_same(jacobian(land).dense(), plain["jacobian"])
        assert_same(fisher(land, "empirical").dense(), plain["empirical"])
        assert_same((ggn(land) + residual_part(land)).dense(), plain["hessian"])


def test_a_graph_is_built_once(monkeypatch):
    land, built = landscape(mlp, "gaussian"), []
    evaluate = cr.Landscape.batch_loss
    monkeypatch.setattr(cr.Landscape, "batch_loss", lambda self, w, batch: built.append(1) or evaluate(self, w, batch))
    operator = hessian(land)
    for _ in range(3):
        operator @ torch.ones(land.dim, dtype=torch.float64)
    assert len(built) == 1
    monkeypatch.setattr(products, "_ROOM", 0)
    operator = hessian(land)
    for _ in range(3):
        operator @ torch.ones(land.dim, 5, dtype=torch.float64)
    assert len(built) == 4


@pytest.mark.parametrize("make", [mlp, conv, attention, tied], ids=lambda m: m.__name__)
def test_one_by_one_and_together_give_the_same(make, monkeypatch):
    land, plain = landscape(make, "cross-entropy"), dense(make, "cross-entropy")
    assert products.several_at_once(land, ROWS) > 1
    monkeypatch.setitem(products._AT_ONCE, "cpu", 0)
    assert products.several_at_once(land, ROWS) == 1
    assert_same(hessian(land).dense(), plain["hessian"])
    assert_same(ggn(land).dense(), plain["ggn"])


@pytest.mark.heavy
def test_convolutions_in_the_other_form_give_the_same(monkeypatch):
    land, plain = landscape(conv, "cross-entropy"), dense(conv, "cross-entropy")
    monkeypatch.setattr(products, "_MUCH", 10 * land.activations * ROWS)
    made, linearize = [], torch.func.linearize
    monkeypatch.setattr(torch.func, "linearize", lambda *a: made.append(1) or linearize(*a))
    operator = hessian(land)
    operator @ torch.ones(land.dim, 9, dtype=torch.float64)
    assert not made
    assert_same(operator.dense(), plain["hessian"])
    assert_same(operator.dense(), plain["hessian"])
    assert len(made) == 1


def test_where_the_other_form_fails_the_first_one_stays(monkeypatch):
    land, plain = landscape(conv, "cross-entropy"), dense(conv, "cross-entropy")
    monkeypatch.setattr(products, "_MUCH", 0)
    monkeypatch.setattr(torch.func, "linearize", lambda *a: (None, lambda v: 1.1 * v))
    assert_same(hessian(land).dense(), plain["hessian"])


@pytest.mark.parametrize("make", [mlp, conv, tied], ids=lambda m: m.__name__)
def test_subsets_are_blocks(make):
    land, plain = landscape(make, "cross-entropy"), dense(make, "cross-entropy")
    name = land.packing.names[0]
    part = land.restrict(name)
    inside = slice(0, part.dim)
    assert 0 < part.dim < land.dim
    assert_same(hessian(part).dense(), plain["hessian"][inside, inside])
    assert_same(ggn(part).dense(), plain["ggn"][inside, inside])
    assert_same(jacobian(part).dense(), plain["jacobian"][:, inside])
    assert_same(fisher(part, "empirical").dense(), plain["empirical"][inside, inside])


def test_linear_pieces_leave_the_diagonal_of_the_residual_part_zero():
    assert torch.diagonal(residual_part(landscape(relu, "cross-entropy")).dense()).abs().max() == 0


def test_models_that_are_linear_have_the_gauss_newton_matrix_for_a_hessian():
    def linear():
        return nn.Linear(3, 3), (ROWS, 3)

    land = landscape(linear, "cross-entropy")
    assert_same(hessian(land).dense(), ggn(land).dense())
    assert residual_part(land).dense().abs().max() == 0


@pytest.mark.heavy
@pytest.mark.parametrize("loss", ["gaussian", F.mse_loss, "bernoulli", F.binary_cross_entropy_with_logits, "positions"])
def test_sampled_labels_average_to_the_true_fisher_matrix(loss):
    """The mean of 100 draws, within 5.5 standard errors for 36 entries: about one false alarm in 10 000 runs."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 2, generator=generator).double(), torch.randn(3, 3, generator=generator).double()
    torch.manual_seed(0)
    if loss == "positions":
        model = nn.Sequential(nn.Linear(2, 6, bias=False), nn.Unflatten(1, (3, 2))).double()
        land = cr.Landscape(model, (x, torch.tensor([[0, 1], [2, -100], [1, 1]])), F.cross_entropy)
    else:
        y = y if loss in ("gaussian", F.mse_loss) else (y > 0).double()
        land = cr.Landscape(nn.Linear(2, 3, bias=False).double(), (x, y), loss)
    assert torch.equal(fisher(land, "sampled", seed=1).dense(), fisher(land, "sampled", seed=1).dense())
    probe = torch.eye(land.dim, dtype=torch.float64)
    draws = torch.stack([fisher(land, "sampled", seed=seed) @ probe for seed in range(100)])
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - fisher(land).dense()).abs() <= 5.5 * error + 1e-12).all()


def test_algebra():
    land = landscape(mlp, "gaussian")
    h, j = hessian(land), jacobian(land)
    a, b = h.dense(), ggn(land).dense()
    assert_same((h + ggn(land)).dense(), a + b)
    assert_same((h - 2 * ggn(land)).dense(), a - 2 * b)
    assert_same((-h).shifted(0.5).dense(), -a + 0.5 * torch.eye(land.dim, dtype=torch.float64))
    assert_same((j * 3.0).T.dense(), 3 * j.dense().T)
    assert h.T is h
    assert j.T.T.shape == j.shape == (ROWS * 3, land.dim)
    assert (ggn(land) + fisher(land)).positive
    assert not (ggn(land) - fisher(land)).positive
    assert not ggn(land).shifted(-1.0).positive
    assert (2 * h).landscape is (h + h).landscape is land
    assert "Hessian" in repr(h)
    with pytest.raises(InputError, match="can be added"):
        h + ntk(land)
    with pytest.raises(InputError, match="square operator"):
        j.shifted(1.0)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(InputError, match="finite number"):
            h.shifted(bad)
        with pytest.raises(InputError, match="finite number"):
            h * bad
    with pytest.raises(TypeError):
        h + 1
    with pytest.raises(InputError, match="transposed="):
        _ = Operator("plain", (2, 3), lambda v: v[:2]).T


@pytest.mark.parametrize("make", [mlp, relu], ids=lambda m: m.__name__)
def test_what_is_estimated_is_that_of_the_matrix(make):
    land = landscape(make, "cross-entropy")
    for operator in (hessian(land), ggn(land), fisher(land), fisher(land, "empirical"), 2 * hessian(land)):
        matrix = operator.dense()
        trace = operator.trace(seed=1)
        assert abs(trace.value - float(matrix.trace())) <= 5 * trace.se + 1e-9
        assert operator.diagonal().values == pytest.approx(matrix.diagonal().numpy(), abs=1e-8)
        top = operator.eigenvalues(2)
        assert top.values == pytest.approx(torch.linalg.eigvalsh(matrix).flip(0)[:2].numpy(), abs=1e-6)
        density = operator.density()
        assert density.size == land.dim
        assert density.nodes.max() == pytest.approx(top.values[0], abs=1e-6)
    matrix, shifted = ggn(land).dense(), ggn(land).shifted(0.1)
    assert ggn(land).rank().value == int(torch.linalg.matrix_rank(matrix, rtol=1e-10))
    assert shifted.logdet().value == pytest.approx(float(torch.logdet(shifted.dense())), abs=1e-6)
    values = torch.linalg.eigvalsh(matrix).clamp(min=0)
    assert ggn(land).effective_dimension(0.1).value == pytest.approx(float((values / (values + 0.1)).sum()), abs=1e-6)


def test_public_names():
    import crunode.curvature as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    assert package.hessian is hessian
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


def test_single_precision_and_half_precision_keep_the_dtype_of_the_landscape():
    land = landscape(mlp, "cross-entropy", dtype=torch.float32)
    plain = dense(mlp, "cross-entropy")
    assert hessian(land).dtype == torch.float32
    torch.testing.assert_close(hessian(land).dense().double(), plain["hessian"], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(ggn(land).dense().double(), plain["ggn"], rtol=1e-3, atol=1e-5)
    half = landscape(mlp, "cross-entropy", dtype=torch.bfloat16)
    for make in (hessian, ggn, residual_part, fisher):
        assert make(half).dense().dtype == torch.float32


def test_batches_of_unlike_shapes():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return torch.tanh(self.layer(x)).mean(1)

    torch.manual_seed(0)
    batches = [(torch.randn(3, k, 2).double(), torch.tensor([0, 1, 1])) for k in (2, 5)]
    model = Mean().double()
    lands = [
        cr.Landscape(model, batches, F.cross_entropy),
        *(cr.Landscape(model, [b], F.cross_entropy) for b in batches),
    ]
    assert_same(hessian(lands[0]).dense(), sum(hessian(land).dense() for land in lands[1:]) / 2)
    assert_same(jacobian(lands[0]).dense(), torch.cat([jacobian(land).dense() for land in lands[1:]]))


def test_losses_of_the_whole_model():
    def whole(model, batch):
        return model(batch[0]).square().sum(1)

    torch.manual_seed(0)
    land = cr.Landscape(nn.Sequential(nn.Linear(2, 2), nn.Tanh()).double(), (torch.randn(4, 2).double(),), whole)
    assert hessian(land).dense().shape == (6, 6)
    assert fisher(land, "empirical").dense().shape == (6, 6)
    for make in (ggn, residual_part, jacobian, ntk, fisher, lambda at: fisher(at, "sampled")):
        with pytest.raises(InputError, match="takes the whole model"):
            make(land)


def test_losses_that_are_no_likelihood_or_not_per_example():
    torch.manual_seed(0)
    x, y = torch.randn(4, 2).double(), torch.tensor([0, 1, 1, 0])
    weighted = cr.Landscape(nn.Linear(2, 2).double(), (x, y), nn.CrossEntropyLoss(label_smoothing=0.1))
    assert ggn(weighted).positive
    with pytest.raises(InputError, match="without weights"):
        fisher(weighted)

    def scalar(outputs, target):
        return F.cross_entropy(outputs, target)

    land = cr.Landscape(nn.Linear(2, 2).double(), (x, y), scalar)
    assert not ggn(land).positive
    with pytest.raises(InputError, match="one loss per example"):
        fisher(land, "empirical")
    with pytest.raises(InputError, match="expected kind as"):
        fisher(land, "exact")


def test_losses_of_first_order_have_no_gauss_newton_part():
    land = landscape(mlp, F.l1_loss)
    assert ggn(land).dense().abs().max() == 0
    assert_same(hessian(land).dense(), residual_part(land).dense())


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, slope):
        return slope * ctx.saved_tensors[0].cos()


class _OnlyOnce(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return _Once.apply(self.layer(x))


def test_models_that_cannot_be_differentiated_twice():
    land = cr.Landscape(_OnlyOnce(), (torch.ones(3, 2), torch.zeros(3, 1)), "gaussian")
    for make in (hessian, ggn, residual_part, jacobian):
        with pytest.raises(InputError, match="differentiated twice"):
            make(land) @ torch.ones(3)


def test_products_that_are_not_finite_name_the_parameters():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return self.layer(x) + self.weight.abs().pow(1.5)

    land = cr.Landscape(Root(), (torch.ones(3, 2), torch.ones(3, 1)), "gaussian")
    with pytest.raises(InputError, match=r"finite products with the Hessian.*'weight'.*square root"):
        hessian(land) @ torch.ones(4)


def test_examples_that_are_not_finite_are_named():
    x = torch.ones(64, 2)
    x[50] = float("nan")
    land = cr.Landscape(nn.Linear(2, 1), (x, torch.ones(64, 1)), "gaussian")
    with pytest.raises(InputError, match="example 50"):
        hessian(land) @ torch.ones(3)


def test_vectors_that_do_not_fit():
    h = hessian(landscape(mlp, "gaussian"))
    for bad, message in [
        (torch.ones(3), "a vector of"),
        (torch.ones(h.shape[1], 2, 2), "a vector of"),
        (torch.ones(h.shape[1], dtype=torch.int64), "dtype torch.int64"),
        ([1.0], "got list"),
        (torch.full((h.shape[1],), torch.nan), "finite vectors"),
        (torch.ones(h.shape[1], device="meta"), "vectors on cpu"),
    ]:
        with pytest.raises(InputError, match=message):
            h @ bad
    assert (h @ torch.ones(h.shape[1], 0, dtype=torch.float64)).shape == (h.shape[0], 0)


def test_matrices_too_large_to_write_out():
    with pytest.raises(InputError, match="20000 columns"):
        Operator("large", (20_001, 20_001), lambda v: v, symmetric=True).dense()
    wide = Operator("wide", (2, 30_000), lambda v: v[:2], transposed=lambda u: F.pad(u, (0, 0, 0, 29_998)))
    assert wide.dense().shape == (2, 30_000)


def test_outputs_that_are_no_tensor():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x):
            return self.layer(x), x

    def loss(outputs, target):
        return (outputs[0] - target).square().mean(1)

    land = cr.Landscape(Pair(), (torch.ones(3, 2), torch.ones(3, 1)), loss)
    assert hessian(land).dense().shape == (3, 3)
    with pytest.raises(InputError, match="got tuple"):
        ggn(land)


def test_outputs_without_an_axis_of_examples():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, x):
            return self.layer(x).T

    def loss(outputs, target):
        return (outputs.T - target).square().mean(1)

    land = cr.Landscape(Turned(), (torch.ones(4, 2), torch.ones(4, 3)), loss)
    assert ggn(land).dense().shape == (9, 9)
    with pytest.raises(InputError, match="leading axis"):
        jacobian(land)


def test_nothing_of_the_caller_changes_and_modes_do_not_matter():
    torch.manual_seed(0)
    model = parametrizations.weight_norm(nn.Linear(3, 3)).double()
    x, y = torch.randn(5, 3).double(), torch.randn(5, 3).double()
    land, before = cr.Landscape(model, (x, y), "gaussian"), copy.deepcopy(model.state_dict())
    h = hessian(land).dense()
    with torch.no_grad():
        assert_same(hessian(land).dense(), h)
    with torch.inference_mode():
        assert_same(hessian(land).dense(), h)
        assert_same(ggn(land).dense(), ggn(land).dense())
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
