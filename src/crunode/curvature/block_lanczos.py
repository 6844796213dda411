"""Ritz vectors by Lanczos steps with blocks: eigenvalues of a multiplicity up to the width of a block are all found.

References:
    Golub & Underwood 1977.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from crunode.core.progress import Progress
from crunode.curvature.probing import Products, applied, generator_of, working_dtype
from crunode.curvature.recurrence import NOTHING

__all__ = ["block_tridiagonal", "ritz_vectors"]


def ritz_vectors(
    matrix: Products, size: int, k: int, steps: int, tolerance: float | None, seed: int
) -> tuple[Tensor, int]:
    """The k Ritz vectors of largest value after block Lanczos steps, and the products they took."""
    chance, dtype = generator_of(seed, 4), working_dtype(matrix)
    start = torch.randn(k, size, generator=chance, dtype=torch.float64).to(matrix.device, dtype)
    block = torch.linalg.qr(start.T).Q
    blocks: list[Tensor] = []
    cores: list[np.ndarray] = []
    couplings: list[np.ndarray] = []
    taken, scale, unit = 0, 0.0, float(torch.finfo(dtype).eps)
    chosen = np.empty((0, k))
    with Progress(steps, "Lanczos steps") as bar:
        for _ in range(steps):
            image = applied(matrix, block)
            blocks.append(block)
            cores.append((block.T @ image).double().cpu().numpy())
            taken, scale = taken + block.shape[1], max(scale, float(image.norm(dim=0).max()))
            for _ in range(2):
                for known in blocks:
                    image = image - known @ (known.T @ image)
            q, r = torch.linalg.qr(image)
            left, sizes, right = torch.linalg.svd(r)
            kept = sizes > NOTHING * unit * scale
            next_to = (sizes[kept, None] * right[kept]).double().cpu().numpy()
            values, axes = np.linalg.eigh(block_tridiagonal(cores, couplings))
            chosen = axes[:, ::-1][:, :k]
            residuals = np.linalg.norm(next_to @ chosen[-block.shape[1] :], axis=0)
            bar.advance()
            if not len(next_to) or (tolerance is not None and residuals.max() <= tolerance * np.abs(values).max()):
                break
            couplings.append(next_to)
            block = q @ left[:, kept]
    weights = torch.from_numpy(chosen.copy()).to(matrix.device, dtype)
    parts = torch.split(weights, [known.shape[1] for known in blocks])
    return torch.stack([known @ part for known, part in zip(blocks, parts, strict=True)]).sum(0), taken


def block_tridiagonal(cores: list[np.ndarray], couplings: list[np.ndarray]) -> np.ndarray:
    """The symmetric matrix with these blocks on the diagonal, the cores, and below it, the couplings."""
    ends = np.cumsum([0, *(len(core) for core in cores)])
    whole = np.zeros((ends[-1], ends[-1]))
    for i, core in enumerate(cores):
        whole[ends[i] : ends[i + 1], ends[i] : ends[i + 1]] = (core + core.T) / 2
    for i, coupling in enumerate(couplings[: len(cores) - 1]):
        whole[ends[i + 1] : ends[i + 2], ends[i] : ends[i + 1]] = coupling
        whole[ends[i] : ends[i + 1], ends[i + 1] : ends[i + 2]] = coupling.T
    return whole
