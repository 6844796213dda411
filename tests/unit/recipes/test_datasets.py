import numpy as np
import pytest
import torch

from crunode.errors import InputError
from crunode.recipes import datasets
from crunode.recipes.datasets import find_images, load_images


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """Only empty folders to look in."""
    for name in ("CRUNODE_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(datasets, "_SHARED", tmp_path / "shared")
    (tmp_path / "CRUNODE_DATA").mkdir()
    return tmp_path


def write(path, train=20, test=10, **changed):
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (train, 28, 28), dtype=np.uint8),
        "y_train": (np.arange(train) % 10).astype(np.uint8),
        "x_test": rng.integers(0, 256, (test, 28, 28), dtype=np.uint8),
        "y_test": (np.arange(test) % 10).astype(np.uint8),
    }
    np.savez(path, **(arrays | changed))


def test_shipped_subset_is_balanced(empty):
    images = load_images("fashion-mnist")
    assert np.bincount(images.y_train).tolist() == [500] * 10
    assert np.bincount(images.y_test).tolist() == [100] * 10
    assert "fashion_mnist_small.npz" in images.source


def test_named_folder_comes_first_then_cache_then_shared(empty):
    assert find_images("mnist") is None
    for folder in ("shared", "XDG_CACHE_HOME/crunode", "CRUNODE_DATA"):
        write(empty / folder / "mnist_small.npz")
        found = find_images("mnist")
        if folder.startswith("XDG") and datasets._cache_folder().parent.name != "XDG_CACHE_HOME":
            continue
        assert found == empty / folder / "mnist_small.npz"


def test_absent_file_says_where_it_was_looked_for(empty):
    with pytest.raises(InputError, match=r"mnist\.npz.*CRUNODE_DATA.*place it there by hand"):
        load_images("mnist", "full")


def test_nothing_is_fetched(empty):
    with pytest.raises(InputError, match="download=True is not supported"):
        load_images("mnist", download=True)


@pytest.mark.parametrize("ask", [("cifar", "small"), ("mnist", "medium")])
def test_unknown_names_are_refused(ask):
    with pytest.raises(InputError, match="expected"):
        load_images(*ask)


def test_small_set_is_cut_from_a_full_file(empty):
    write(empty / "CRUNODE_DATA" / "mnist.npz", train=5100, test=1100)
    images = load_images("mnist")
    assert len(images.x_train) == 5000
    assert len(images.x_test) == 1000
    assert np.array_equal(images.y_train, np.arange(5000) % 10)


@pytest.mark.parametrize(
    "changed",
    [
        {"x_train": np.zeros((20, 28, 28))},
        {"y_train": np.full(20, 10, np.uint8)},
        {"y_test": np.zeros(3, np.uint8)},
        {"x_test": np.array([None, {}], dtype=object)},
    ],
    ids=["floats", "eleven classes", "too few labels", "pickles"],
)
def test_files_that_are_something_else_are_refused(empty, changed):
    write(empty / "CRUNODE_DATA" / "mnist_small.npz", **changed)
    with pytest.raises(InputError, match=r"mnist_small\.npz"):
        load_images("mnist")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"\x93NUMPY nonsense"])
def test_broken_files_are_refused(empty, content):
    (empty / "CRUNODE_DATA" / "mnist_small.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"mnist_small\.npz"):
        load_images("mnist")


def test_tensors_are_scaled_and_pooled(empty):
    images = load_images("fashion-mnist")
    x, y = images.tensors("test", pool=2)
    block = images.x_test[0, :2, :2].astype(float).mean() / 255
    assert x.shape == (1000, 196)
    assert y.dtype == torch.int64
    assert float(x[0, 0]) == pytest.approx(block, abs=1e-6)
    assert 0 <= float(x.min()) < float(x.max()) <= 1


@pytest.mark.parametrize("ask", [{"split": "valid"}, {"pool": 3}, {"pool": 0}])
def test_tensors_refuse_what_there_is_not(ask):
    with pytest.raises(InputError, match="expected"):
        load_images("fashion-mnist").tensors(**ask)
