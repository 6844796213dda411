"""Parameters as one vector and back."""

import pytest
import torch

from crunode.core.params import Packing

MIXED = {
    "half": torch.tensor([[0.5, 1.5]], dtype=torch.float16),
    "brain": torch.tensor([2.5], dtype=torch.bfloat16),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 3),
    "double": torch.tensor([1 / 3, 2 / 3], dtype=torch.float64),
}


def test_round_trip_keeps_values_shapes_and_dtypes():
    packing = Packing.of(MIXED)
    assert (packing.dim, packing.dtype) == (6, torch.float64)
    back = packing.unravel(packing.ravel(MIXED))
    for name, value in MIXED.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name], value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_moved_in_float32(dtype):
    assert Packing.of({"w": torch.ones(2, dtype=dtype)}).dtype == torch.float32


def test_gradients_flow_through():
    packing = Packing.of(MIXED)
    w = packing.ravel(MIXED).requires_grad_()
    sum(value.double().square().sum() for value in packing.unravel(w).values()).backward()
    torch.testing.assert_close(w.grad, 2 * w.detach())


def test_unravel_gives_views_where_the_dtype_allows():
    packing = Packing.of({"a": torch.ones(2, 2), "b": torch.ones(3)})
    flat = torch.zeros(7)
    packing.unravel(flat)["b"].fill_(1.0)
    assert flat.tolist() == [0.0] * 4 + [1.0] * 3


def test_order_is_the_one_given():
    packing = Packing.of({"z": torch.ones(1), "a": torch.zeros(1)})
    assert packing.names == ("z", "a")
    assert packing.ravel({"a": torch.tensor([2.0]), "z": torch.tensor([1.0])}).tolist() == [1.0, 2.0]
