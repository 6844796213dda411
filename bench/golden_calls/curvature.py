"""Golden calls of first and second derivatives: operators, what is estimated of them, steps that use them."""

from __future__ import annotations

from collections.abc import Callable

import torch

import crunode as cr
from crunode.testing import check_operator
from golden_calls import call, landscapes, refused

OPERATORS: dict[str, Callable[[cr.Landscape], object]] = {
    "hessian": cr.curvature.hessian,
    "ggn": cr.curvature.ggn,
    "residual_part": cr.curvature.residual_part,
    "fisher": cr.curvature.fisher,
    "empirical fisher": lambda land: cr.curvature.fisher(land, "empirical"),
    "ntk": cr.curvature.ntk,
}


def touched(name: str, land: cr.Landscape) -> object:
    """A product with one vector and with three, and the whole matrix."""
    matrix = OPERATORS[name](land)
    generator = torch.Generator().manual_seed(0)
    many = torch.randn(matrix.shape[1], 3, generator=generator).to(matrix.dtype)
    return [matrix @ many[:, 0], matrix @ many, matrix.dense(), matrix.shape]


for _name in OPERATORS:
    call(f"operator {_name}")(
        lambda name=_name: [touched(name, make()) for make in (landscapes.classes, landscapes.bent, landscapes.doubles)]
    )


@call("operator hessian of images")
def _() -> object:
    return [touched(name, landscapes.images()) for name in ("hessian", "ggn", "fisher")]


@call("operator: part of the parameters")
def _() -> object:
    return [touched(name, landscapes.classes().restrict("0.*")) for name in ("hessian", "ggn")]


@call("trace and diagonal")
def _() -> object:
    matrix = cr.curvature.hessian(landscapes.classes())
    methods = [cr.curvature.trace(matrix, method=method, probes=16) for method in ("hutchinson", "hutch++")]
    wide = cr.curvature.hessian(landscapes.classes(60))  # more parameters than the default number of probes
    large = [wide.trace(), wide.diagonal()]
    return [*methods, cr.curvature.diagonal(matrix, probes=16), matrix.trace(), matrix.diagonal(probes=8), *large]


@call("hessian_trace")
def _() -> object:
    makers = (landscapes.classes, landscapes.bent, landscapes.images, landscapes.rectified)
    free = [cr.curvature.hessian_trace(make()) for make in makers]
    asked = (("hutchinson", landscapes.classes), ("exact", landscapes.rectified))
    methods = [cr.curvature.hessian_trace(make(), method=method, probes=101) for method, make in asked]
    return [*free, *methods, *(cr.curvature.ggn_trace(make(), probes=101) for make in makers)]


@call("eigenvalues")
def _() -> object:
    matrix = cr.curvature.hessian(landscapes.classes(8))
    return [cr.curvature.top_eigenvalues(matrix, 3, steps=20), cr.curvature.sharpness(matrix), matrix.eigenvalues(2)]


@call("spectral_density")
def _() -> object:
    found = cr.curvature.spectral_density(cr.curvature.hessian(landscapes.classes(8)), probes=4, steps=16, points=32)
    return [found, found.mass(0.01, 10.0), found.moment(2)]


@call("dimension")
def _() -> object:
    matrix = cr.curvature.ggn(landscapes.classes(8))
    return [
        cr.curvature.effective_dimension(matrix, 1e-2, probes=8, steps=16),
        cr.curvature.participation_ratio(matrix, probes=16),
        cr.curvature.matrix_rank(matrix, products=64, steps=16),
        cr.curvature.matrix_rank(cr.curvature.ntk(landscapes.smooth())),
    ]


@call("log_determinant")
def _() -> object:
    matrix = cr.curvature.fisher(landscapes.classes(), "empirical")
    return [
        cr.curvature.log_determinant(matrix, 1e-2, probes=8, steps=16),
        cr.curvature.function_trace(matrix, lambda x: x * x, probes=8, steps=16),
        matrix.shifted(1e-3).logdet(probes=8),
    ]


@call("kernel and eigenvalues of the Gauss-Newton matrix")
def _() -> object:
    makers = (landscapes.classes, landscapes.bent, landscapes.images)
    return [[cr.curvature.tangent_kernel(make()), cr.curvature.ggn_eigenvalues(make())] for make in makers]


@call("damped_solve")
def _() -> object:
    gram = torch.tensor([[3.0, 1.0], [1.0, 1.0]]).double()
    right = torch.tensor([8.0, 4.0]).double()
    ones = torch.ones(2, 2).double()
    return [cr.curvature.damped_solve(gram, 0.5, right), cr.curvature.damped_solve(ones, 0.0, right)]


@call("linearized")
def _() -> object:
    land = landscapes.bent()
    linear, step = cr.curvature.linearize(land), cr.curvature.gauss_newton_step(land, 0.1)
    near = land.center + 0.05
    return {
        "kernel": linear.kernel(),
        "push": linear.push(near - land.center),
        "pull": linear.pull(linear.outputs),
        "loss": [linear.loss(near), linear.loss(land.center)],
        "step": step,
        "descent": cr.curvature.linearized_descent(landscapes.doubles(), 20),
    }


@call("lazy")
def _() -> object:
    land = landscapes.doubles()
    near = land.center + 0.01
    return {
        "lazy": cr.curvature.lazy_diagnostics(land, near),
        "error": cr.curvature.linearization_error(land, near),
        "exponent": cr.curvature.width_exponent({p: [2 / p**0.5, 2.1 / p**0.5] for p in (64, 128, 256, 512)}),
        "bound": cr.curvature.gradient_change_bound(torch.tensor([[3.0, 4.0]]), width=100, bend=1.0, distance=0.2),
    }


@call("natural gradient")
def _() -> object:
    found = []
    for fisher in ("empirical", "true"):
        torch.manual_seed(4)
        net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        options = {"lr": 0.1, "alpha": 0.1, "fisher": fisher, "momentum": 0.9, "weight_decay": 1e-3}
        optimizer = cr.curvature.NaturalGradient(net, "cross-entropy", **options)
        for _ in range(3):
            loss = optimizer.step(torch.randn(10, 4), torch.randint(3, (10,)))
            found.append([loss, optimizer.last])
    return found


@call("check_operator")
def _() -> object:
    return check_operator(cr.curvature.hessian(landscapes.classes()))


@call("curvature: wrong input")
def _() -> object:
    matrix = cr.curvature.hessian(landscapes.bent())
    return [
        refused(lambda: cr.curvature.top_eigenvalues(matrix, 0)),
        refused(lambda: cr.curvature.trace(matrix, method="none")),
        refused(lambda: cr.curvature.fisher(landscapes.bent(), "half")),
        refused(lambda: matrix @ torch.ones(2)),
        refused(lambda: cr.curvature.effective_dimension(matrix, -1.0)),
    ]
