import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from crunode.errors import InputError, StoreError
from crunode.store.documents import dumps, loads
from crunode.training.checkpoints import _join, _split, list_checkpoints, load_checkpoint, save_checkpoint


def net(width=4, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def stepped(model, optimizer, steps=3):
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1), dtype=next(model.parameters()).dtype)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "rprop": lambda p: torch.optim.Rprop(p),
}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_going_on_from_a_checkpoint_is_as_if_never_stopped(tmp_path, name, dtype):
    first = net().to(dtype)
    optimizer = OPTIMIZERS[name](first.parameters())
    stepped(first, optimizer)
    save_checkpoint(tmp_path, 3, first, optimizer)
    stepped(first, optimizer)
    second = net(seed=1).to(dtype)
    fresh = OPTIMIZERS[name](second.parameters())
    load_checkpoint(tmp_path).restore(second, fresh)
    stepped(second, fresh)
    ended = second.state_dict()
    assert all(torch.equal(value, ended[name]) for name, value in first.state_dict().items())


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4], gamma=0.5),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 6),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.LinearLR(o, total_iters=2), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
            milestones=[2],
        ),
    ],
    ids=["steps", "cosine", "lambda", "sequence"],
)
def test_schedulers_go_on(tmp_path, make):
    def both(seed):
        model = net(seed=seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, make(optimizer)

    def rates(optimizer, scheduler):
        found = []
        for _ in range(3):
            optimizer.step()
            scheduler.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    first, second = both(0), both(1)
    rates(*first[1:])
    save_checkpoint(tmp_path, 3, *first)
    load_checkpoint(tmp_path).restore(*second)
    assert rates(*first[1:]) == rates(*second[1:])


def test_weights_file_is_an_ordinary_safetensors_file(tmp_path):
    model = net()
    path = save_checkpoint(tmp_path, 1200, model, torch.optim.Adam(model.parameters()), meta={"epoch": 4})
    assert path.name == "step-00001200.safetensors"
    loaded = load_file(path)
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    assert json.loads((tmp_path / "step-00001200.json").read_text())["meta"]["epoch"] == 4
    assert not list(tmp_path.glob("*.tmp"))


def test_tied_and_strided_weights_are_kept(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight
            self.c = nn.Parameter(torch.arange(6.0).reshape(2, 3).T)

    model = Tied()
    save_checkpoint(tmp_path, 0, model)
    other = Tied()
    with torch.no_grad():
        other.c.zero_()
    load_checkpoint(tmp_path).restore(other)
    assert torch.equal(other.a.weight, model.a.weight)
    assert other.b.weight is other.a.weight
    assert torch.equal(other.c, model.c)


def test_steps_are_chosen_by_number_and_the_last_is_the_default(tmp_path):
    for step in (0, 7, 100_000_000):
        save_checkpoint(tmp_path, step, net(seed=step % 11))
    assert load_checkpoint(tmp_path).step == 100_000_000
    assert torch.equal(load_checkpoint(tmp_path, 7).weights["0.weight"], net(seed=7)[0].weight)
    assert list_checkpoints(tmp_path, check=True) == list_checkpoints(tmp_path)
    assert list_checkpoints(tmp_path).steps == (0, 7, 100_000_000)
    assert list_checkpoints(tmp_path).problems == ()
    with pytest.raises(InputError, match=r"step 8 .*found steps \[0, 7, 100000000\]"):
        load_checkpoint(tmp_path, 8)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Linear(3, 4), r"without \['weight', 'bias'\]; with \['0.bias'"),
        (net(width=5), r"0.weight \(4, 3\) float32 for \(5, 3\) float32"),
        (net().double(), "float32 for .* float64"),
    ],
    ids=["names", "shapes", "dtype"],
)
def test_state_of_another_model_is_refused_and_changes_nothing(tmp_path, other, message):
    save_checkpoint(tmp_path, 0, net())
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(InputError, match=message):
        load_checkpoint(tmp_path).restore(other)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())


def test_state_of_another_optimizer_is_refused_before_weights_change(tmp_path):
    model = net()
    save_checkpoint(tmp_path, 0, model, torch.optim.SGD(model.parameters(), lr=0.1))
    save_checkpoint(tmp_path, 1, model)
    other = net(seed=1)
    before = other[0].weight.clone()
    groups = [{"params": other[0].parameters()}, {"params": other[2].parameters()}]
    for step, optimizer, message in [
        (0, torch.optim.Adam(other.parameters()), "that of SGD"),
        (1, torch.optim.Adam(other.parameters()), "got none"),
        (0, torch.optim.SGD(groups, lr=0.1), r"groups of \[2, 2\] parameters, got one with groups of \[6\]"),
    ]:
        with pytest.raises(InputError, match=message):
            load_checkpoint(tmp_path, step).restore(other, optimizer)
    assert torch.equal(other[0].weight, before)


@pytest.mark.parametrize("name", ["step-00000010.safetensors", "step-00000010.state.safetensors", "step-00000010.json"])
@pytest.mark.parametrize("harm", ["cut", "flip", "remove"])
def test_damage_is_named(tmp_path, name, harm):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for step in (0, 10, 20):
        stepped(model, optimizer, 1)
        save_checkpoint(tmp_path, step, model, optimizer)
    path = tmp_path / name
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 4
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(data if harm == "flip" else bytes(data[:-9]))
    found = list_checkpoints(tmp_path, check=True)
    assert found.steps == (0, 20)
    assert len(found.problems) == 1
    assert "step 10 does not count" in found.problems[0]
    assert name in found.problems[0]
    with pytest.raises((StoreError, InputError), match=r"step.*10"):
        load_checkpoint(tmp_path, 10)
    assert load_checkpoint(tmp_path).step == 20


def test_gaps_leftovers_and_foreign_files_are_told(tmp_path):
    for step in (0, 10, 20, 30):
        save_checkpoint(tmp_path, step, net())
    for path in tmp_path.glob("step-00000020*"):
        path.unlink()
    (tmp_path / "step-00000040.safetensors.tmp").write_bytes(b"half")
    (tmp_path / "model.pt").write_bytes(b"")
    found = list_checkpoints(tmp_path)
    assert found.steps == (0, 10, 30)
    assert sorted(found.problems) == [
        "model.pt is no file of a checkpoint",
        "step 20 is gone: step 30 was written after it",
        "step-00000040.safetensors.tmp was being written when its process ended",
    ]


def test_renamed_checkpoint_does_not_pass_for_another_step(tmp_path):
    save_checkpoint(tmp_path, 10, net())
    for suffix in (".safetensors", ".json"):
        (tmp_path / f"step-00000010{suffix}").rename(tmp_path / f"step-00000011{suffix}")
    assert list_checkpoints(tmp_path).steps == ()
    with pytest.raises(StoreError, match="another step"):
        load_checkpoint(tmp_path)


def test_folder_that_is_not_there_is_refused(tmp_path):
    for call in (list_checkpoints, load_checkpoint):
        with pytest.raises(InputError, match="expected a folder of checkpoints"):
            call(tmp_path / "none")
    with pytest.raises(InputError, match="found steps none"):
        load_checkpoint(tmp_path)


def test_state_that_would_need_pickle_is_refused(tmp_path):
    class Odd(torch.optim.SGD):
        def state_dict(self):
            return super().state_dict() | {"callback": print}

    model = net()
    with pytest.raises(InputError, match=r"builtin_function_or_method at optimizer\.callback"):
        save_checkpoint(tmp_path, 0, model, Odd(model.parameters(), lr=0.1))
    assert list_checkpoints(tmp_path).steps == ()


SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5)
KEYS = st.text("ab$.", max_size=3) | st.integers(-3, 3)
TREES = st.recursive(
    SCALARS,
    lambda t: st.lists(t, max_size=3) | st.tuples(t, t) | st.dictionaries(KEYS, t, max_size=3),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_trees_come_back_through_json(tree):
    assert repr(_join(loads(dumps(_split(tree, "t", {}), indent=1)), {})) == repr(tree)


def test_tensors_of_a_tree_come_back():
    tensors = {}
    tree = {0: {"exp": torch.ones(2), "old": [torch.zeros(1), (torch.arange(3), 1)]}, "a.b": {"c": torch.ones(1)}}
    back = _join(_split(tree, "t", tensors), tensors)
    assert len(tensors) == 4
    assert torch.equal(back[0]["old"][1][0], torch.arange(3))


def test_order_in_memory_is_part_of_the_state():
    tensors = {}
    tree = {"turned": torch.arange(6.0).reshape(2, 3).T, "cut": torch.arange(12.0).reshape(3, 4)[:, :2]}
    skeleton = _split(tree, "t", tensors)
    back = _join(skeleton, {name: value.contiguous() for name, value in tensors.items()})
    assert back["turned"].stride() == (1, 3)
    assert all(torch.equal(back[name], tree[name]) for name in tree)
