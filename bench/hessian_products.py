"""Hessian-vector products of crunode and PyHessian 0.1 on one thread, in turns: CPU time per product.

Run it in an environment that has both: `OMP_NUM_THREADS=1 PYTHONPATH=src python bench/hessian_products.py`.
"""

import time

import torch
import torch.nn.functional as F
from pyhessian import hessian as peer
from pyhessian.utils import hessian_vector_product
from torch import nn

import crunode as cr
from crunode.curvature.operators import hessian

__all__: list[str] = []

VECTORS, ROUNDS, WARM = 8, 7, 12


def mlp() -> tuple[nn.Module, tuple[int, ...]]:
    """784-256-256-10."""
    layers = nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    return nn.Sequential(*layers), (784,)


def cnn() -> tuple[nn.Module, tuple[int, ...]]:
    """Two convolutions and a linear layer."""
    first = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(784, 10)), (1, 28, 28)


def main() -> None:
    """Print the least CPU time per product of each way."""
    torch.set_num_threads(1)
    for make in (mlp, cnn):
        torch.manual_seed(0)
        model, shape = make()
        x, y = torch.randn(512, *shape), torch.randint(10, (512,))
        operator = hessian(cr.Landscape(model, (x, y), F.cross_entropy))
        batch = peer(model, nn.CrossEntropyLoss(), data=(x, y), cuda=False)
        loader = peer(model, nn.CrossEntropyLoss(), dataloader=[(x, y)], cuda=False)
        vectors = torch.randn(operator.shape[1], VECTORS)
        sizes, shapes = [p.numel() for p in batch.params], [p.shape for p in batch.params]
        lists = [[t.view(s) for t, s in zip(v.split(sizes), shapes, strict=True)] for v in vectors.unbind(1)]
        ways = {
            "PyHessian, loader": lambda lists=lists, p=loader: [p.dataloader_hv_product(v)[1] for v in lists],
            "PyHessian, one batch": lambda lists=lists, p=batch: [
                hessian_vector_product(p.gradsH, p.params, v) for v in lists
            ],
            "crunode, all at once": lambda h=operator, v=vectors: h @ v,
            "crunode, one by one": lambda h=operator, v=vectors: [h @ one for one in v.unbind(1)],
        }
        for _ in range(WARM):  # until convolutions are traced
            operator @ vectors
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                start = time.process_time()
                way()
                times[name].append((time.process_time() - start) / VECTORS)
        print(make.__name__, {name: f"{1e3 * min(spent):.1f} ms" for name, spent in times.items()})


if __name__ == "__main__":
    main()
