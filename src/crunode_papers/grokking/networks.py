"""Networks that grok modular arithmetic: quadratic ones and small transformers, with weights from a seed alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from crunode import InputError
from crunode.core import derived_seed
from crunode_papers.grokking.tasks import check_seed, check_whole

__all__ = ["ModularTransformer", "QuadraticNetwork", "centred_l2", "initial_weights"]


class QuadraticNetwork(nn.Module):
    """f(x) = V (W x)² without biases, for pairs of one-hot inputs x = [e_a; e_b].

    The paper writes Vσ(WᵀX) with W of shape 2p × K (eq. 1); `first.weight` is its Wᵀ. On one-hot inputs
    f_c(a, b) = Σ_j V_cj (W_ja + W_j,p+b)².

    Args:
        modulus: p: there are 2p inputs and p outputs.
        width: K, the number of units.
        seed: Initial weights come from it.
        scale: They are multiplied by it (see `initial_weights`).

    Attributes:
        first: The layer with W, of shape (K, 2p).
        second: The layer with V, of shape (p, K).

    Example:
        >>> net = QuadraticNetwork(modulus=5, width=7, seed=1)
        >>> x = torch.tensor([[1., 0., 0., 0., 0., 0., 0., 0., 1., 0.]])
        >>> torch.allclose(net(x), net(torch.tensor([[0, 3]])))
        True

    References:
        Cullen 2026, eq. (1).
    """

    def __init__(self, modulus: int, width: int, seed: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        w, v = initial_weights(modulus, width, seed, scale)
        self.modulus = modulus
        self.first = nn.Linear(2 * modulus, width, bias=False, device="meta").to_empty(device="cpu")
        self.second = nn.Linear(width, modulus, bias=False, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            self.first.weight.copy_(w)
            self.second.weight.copy_(v)

    @classmethod
    def of(cls, first: Tensor, second: Tensor) -> QuadraticNetwork:
        """The network with W = `first` of shape (K, 2p) and V = `second` of shape (p, K), which are copied.

        Example:
            >>> tuple(QuadraticNetwork.of(torch.ones(4, 6), torch.ones(3, 4))(torch.tensor([[0, 2]])).shape)
            (1, 3)
        """
        if first.ndim != 2 or second.ndim != 2 or first.shape != (second.shape[1], 2 * second.shape[0]):
            shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
            raise InputError(f"expected W of shape (K, 2p) and V of shape (p, K), got {shapes}")
        made = cls(second.shape[0], second.shape[1]).to(first.device, first.dtype)
        with torch.no_grad():
            made.first.weight.copy_(first)
            made.second.weight.copy_(second)
        return made

    def features(self, pairs: Tensor) -> Tensor:
        """F = (W x)², shape (examples, K), of one-hot rows of length 2p or of whole numbers (a, b)."""
        weight = self.first.weight
        if pairs.is_floating_point():
            return (pairs @ weight.T).square()
        table = weight.T
        return (table[pairs[..., 0]] + table[pairs[..., 1] + self.modulus]).square()

    def forward(self, pairs: Tensor) -> Tensor:
        """Outputs, shape (examples, p)."""
        outputs: Tensor = self.second(self.features(pairs))
        return outputs


def initial_weights(modulus: int, width: int, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """W of shape (K, 2p) and V of shape (p, K): uniform within ±1/√inputs as in torch's linear layers, times `scale`.

    The paper does not give its initialization. Drawn in float64 and rounded to float32, on the CPU, so that the numbers
    depend on the seed alone.

    Example:
        >>> w, v = initial_weights(5, 16)
        >>> float(w.abs().max()) <= 10**-0.5, float(v.abs().max()) <= 0.25
        (True, True)
    """
    check_whole(modulus, "modulus", low=2)
    check_whole(width, "width")
    check_seed(seed)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise InputError(f"expected scale as a positive number, got {scale!r}")
    generator = torch.Generator().manual_seed(derived_seed(seed, 0))
    drawn = [torch.rand(shape, generator=generator, dtype=torch.float64) for shape in _shapes(modulus, width)]
    w, v = ((2 * u - 1) * scale / math.sqrt(u.shape[1]) for u in drawn)
    return w.float(), v.float()


def _shapes(modulus: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (width, 2 * modulus), (modulus, width)


def centred_l2(outputs: Tensor, targets: Tensor) -> Tensor:
    """½‖(P⊥(Y − Ŷ))_i‖² of each example i, with P⊥ = I − 11ᵀ/n along the examples of the batch.

    Their sum is the paper's loss ½‖P⊥(Y − Ŷ)‖²_F, their mean the L_n of the library. P⊥ takes off what all examples of
    the batch have in common, so an example's loss depends on the others: L_n is that of *all* data only when all are in
    one batch. Over minibatches of size B it is still an unbiased gradient up to a factor: the mean over all batches is
    (B−1)/B · n/(n−1) times the loss of all n.

    Args:
        outputs: Ŷ, shape (n, p).
        targets: Y, of the same shape, or classes of shape (n,).

    Example:
        >>> y = torch.eye(3)
        >>> centred_l2(y + torch.tensor([5.0, 0.0, -2.0]), y)
        tensor([0., 0., 0.])

    References:
        Cullen 2026, section 3.2.
    """
    if targets.ndim == outputs.ndim - 1:
        targets = nn.functional.one_hot(targets, outputs.shape[-1]).to(outputs.dtype)
    if targets.shape != outputs.shape:
        raise InputError(
            f"expected targets of shape {tuple(outputs.shape)}, as the outputs, or classes, got {tuple(targets.shape)}"
        )
    gap = outputs - targets
    return 0.5 * (gap - gap.mean(0, keepdim=True)).square().sum(1)


class ModularTransformer(nn.Module):
    """A transformer that reads "a b =" and gives p logits at the last position.

    Learned embeddings of tokens and places, `layers` blocks of causal attention and a two-layer ReLU network, each
    added to the stream, and a linear map to the logits; no normalization layers, no biases in attention. With one
    layer, width 128 and 4 heads it is the network of Nanda et al. 2023; the paper says only that its own (Fig. 13) has
    several layers.

    Args:
        modulus: p.
        layers: Number of blocks.
        width: Width of the stream.
        heads: Heads of attention, a divisor of the width.
        seed: Initial weights come from it: normal, with variance 1 over the width, or over the inputs in the second
            layer of the ReLU networks.

    Example:
        >>> net = ModularTransformer(7, layers=2, width=16, heads=2)
        >>> tuple(net(torch.tensor([[0, 3], [6, 6]])).shape)
        (2, 7)

    References:
        Nanda et al. 2023; Cullen 2026, appendix H.3.1.
    """

    def __init__(self, modulus: int, layers: int = 1, width: int = 128, heads: int = 4, seed: int = 0) -> None:
        super().__init__()
        for name, value in (("layers", layers), ("width", width), ("heads", heads)):
            check_whole(value, name)
        check_whole(modulus, "modulus", low=2)
        check_seed(seed)
        if width % heads:
            raise InputError(f"expected heads that divide the width {width}, got {heads}")
        self.modulus = modulus
        generator = torch.Generator().manual_seed(derived_seed(seed, 1))
        self.embedding = nn.Parameter(_normal((modulus + 1, width), width, generator))
        self.places = nn.Parameter(_normal((3, width), width, generator))
        self.blocks = nn.ModuleList(_Block(width, heads, generator) for _ in range(layers))
        self.unembedding = nn.Parameter(_normal((modulus, width), width, generator))

    def forward(self, pairs: Tensor) -> Tensor:
        """Logits, shape (examples, p), of pairs (a, b) as whole numbers or one-hot rows of length 2p."""
        if pairs.is_floating_point():
            pairs = torch.unflatten(pairs, -1, (2, self.modulus)).argmax(-1)
        sign = torch.full_like(pairs[..., :1], self.modulus)
        stream = self.embedding[torch.cat([pairs, sign], -1)] + self.places
        for block in self.blocks:
            stream = block(stream)
        return stream[..., -1, :] @ self.unembedding.T


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.heads = heads
        self.mixing = nn.Parameter(_normal((3 * width, width), width, generator))
        self.joining = nn.Parameter(_normal((width, width), width, generator))
        self.rise = nn.Parameter(_normal((4 * width, width), width, generator))
        self.rise_bias = nn.Parameter(torch.zeros(4 * width))
        self.fall = nn.Parameter(_normal((width, 4 * width), 4 * width, generator))
        self.fall_bias = nn.Parameter(torch.zeros(width))

    def forward(self, stream: Tensor) -> Tensor:
        """The stream after attention and the ReLU network, shape (examples, 3, width)."""
        query, key, value = torch.unflatten(stream @ self.mixing.T, -1, (3, self.heads, -1)).movedim(-3, 0)
        query, key, value = (t.transpose(-2, -3) for t in (query, key, value))  # (examples, heads, places, size)
        # Written out: the fused kernel has no batching rule on CPUs and no second derivative.
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        seen = scores.masked_fill(future, -math.inf).softmax(-1) @ value
        stream = stream + seen.transpose(-2, -3).flatten(-2) @ self.joining.T
        return stream + (stream @ self.rise.T + self.rise_bias).relu() @ self.fall.T + self.fall_bias


def _normal(shape: tuple[int, ...], inputs: int, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator) / math.sqrt(inputs)
