"""Whether the labels a model was given may be replaced by its own predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.rng import derived_seed, preserved_rng
from crunode.errors import EstimationError
from crunode.sampling.posterior import Posterior
from crunode.sampling.run import sample

__all__ = ["Labels", "choose_labels"]

# If w* is the truth the ratio is like a mean of as many squares of normal numbers as directions matter, 2λ of them or
# more: outside of this once in a thousand for 8 directions, once in four for a single one. If the labels had a part in
# w* it is far below.
_LOW, _HIGH = 0.1, 6.0
_CHAINS, _DRAWS, _WARMUP = 4, 4, 80
# With few examples a parameter, a network that is half trained looks like a truth: some labels were fitted, some not.
_ENOUGH = 10
_SAME = 1e-5


@dataclass(frozen=True)
class Labels:
    """Which labels to sample with, and why.

    Attributes:
        landscape: The landscape with these labels.
        kind: "given" or "own".
        reason: One sentence.
        ratio: How far the given labels moved the loss, over how far labels that had no part in w* would; None where it
            was not measured.
    """

    landscape: Landscape
    kind: str
    reason: str
    ratio: float | None = None

    def summary(self) -> dict[str, Any]:
        """Choice, reason and measure as JSON-able values."""
        return {"kind": self.kind, "reason": self.reason, "ratio": self.ratio}


def choose_labels(landscape: Landscape, asked: str | None = None, *, kernel: Any = None, seed: int = 0) -> Labels:
    """Take the model's own predictions for labels where w* may be the truth behind noisy ones.

    If w* is the truth, the noise of the labels says nothing of the learning coefficient: it only moves the minimum of
    L_n away from w*, which lowers nβ (E[L_n(w)] − L_n(w*)) by O(βλ) with a spread of its own. With the model's own
    predictions for labels the loss above the center's is K(w), the divergence from w*, free of both.

    Whether w* may be the truth is seen at points w drawn from the posterior of K. There c(w) = L_n(w) − L_n(w*) − K(w)
    is a mean over n examples of something that has mean 0 and a variance of its own, v(w), if labels scatter around
    the predictions at w*, so that n c²/v is 1 on average. If w* was fitted to these labels they cannot move the loss to
    first order, and the ratio is far below 1; if w* is no minimum it is far above. That is asked only where there are
    at least ten examples a parameter; otherwise the given labels are kept.

    Args:
        landscape: Model, data and loss at the point.
        asked: "given" or "own" to have it so; None to choose.
        kernel: The kernel to draw points with; None to choose.
        seed: The points come from it.

    Example:
        >>> from crunode.core.landscape import Landscape
        >>> net = torch.nn.Linear(3, 1, bias=False)
        >>> x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
        >>> noise = torch.randn(500, 1, generator=torch.Generator().manual_seed(1))
        >>> choose_labels(Landscape(net, (x, net(x).detach() + noise), "gaussian")).kind
        'own'
    """
    if asked == "given":
        return Labels(landscape, "given", "as asked")
    if asked is None and _are_predictions(landscape):
        return Labels(landscape.without_noise(), "given", "they are what the model predicts")
    own = landscape.self_labelled() if landscape.pointwise else None
    if own is None:
        return Labels(landscape, "given", "the loss does not say what the model predicts")
    if asked == "own":
        return Labels(own, "own", "as asked")
    if landscape.n < _ENOUGH * landscape.dim:
        return Labels(landscape, "given", "with fewer than ten examples a parameter they may have been fitted")
    kernel = None if kernel is None else kernel.core  # one level has nothing to exchange
    if kernel is not None and isinstance(kernel.step, tuple):  # one for each level of a ladder; here there is one level
        kernel = replace(kernel, step=None)
    options: dict[str, Any] = {"chains": _CHAINS, "draws": _DRAWS, "warmup": _WARMUP, "seed": derived_seed(seed, 31)}
    try:
        drawn = sample(Posterior(own, nbeta="wbic"), kernel, keep=("positions",), **options)
    except EstimationError:
        return Labels(landscape, "given", "no points could be drawn to compare them at")
    ratios = []
    base, base_own = landscape.losses().double(), own.losses().double()
    for w in torch.from_numpy(drawn.arrays["positions"]).flatten(0, 1).to(landscape.center):
        moved = (landscape.losses(w).double() - base) - (own.losses(w).double() - base_own)
        ratios.append(float(len(moved) * moved.mean().square() / moved.var().clamp(min=1e-300)))
    ratio = sum(ratios) / len(ratios)
    if _LOW < ratio < _HIGH:
        how = "the given ones scatter around the predictions at w* as noise does"
        return Labels(own, "own", f"{how} (ratio {ratio:.2g}, expected 1)", ratio=ratio)
    how = "had a part in w*" if ratio <= _LOW else "do not scatter around the predictions at w*"
    return Labels(landscape, "given", f"they {how} (ratio {ratio:.2g}, 1 for noise)", ratio=ratio)


def _are_predictions(land: Landscape) -> bool:
    """Equal to what the model predicts but for rounding, as far as the loss says what that is."""
    if not land.pointwise or not land.data.stacked:
        return False
    apart, size = 0.0, 0.0
    with torch.no_grad(), preserved_rng():
        for batch in land.passes():
            predicted = land.predicted_labels(batch)
            given = batch[-1] if isinstance(batch, tuple | list) else None
            if predicted is None or not isinstance(given, Tensor) or given.shape != predicted.shape:
                return False
            if not given.is_floating_point():
                return False
            apart += float((given.double() - predicted.double()).square().sum())
            size += float(predicted.double().square().sum())
            if apart > _SAME**2 * size:  # most labels differ in the first batch
                return False
    return True
