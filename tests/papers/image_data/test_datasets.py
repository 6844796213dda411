import gzip
import hashlib
import http.server
import io
import os
import tarfile
import threading
import urllib.request
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crunode.errors import InputError
from crunode_papers.image_data import datasets, published
from crunode_papers.image_data.datasets import Images, find_images, load_images, read_images
from crunode_papers.image_data.image_files import ARRAYS, as_idx, idx_name, read_idx


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


def test_nothing_is_fetched_unless_asked(empty, monkeypatch):
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("the network was touched"))
    for name in datasets.NAMES:
        with pytest.raises(InputError, match=r"\(not there\).*download=True"):
            load_images(name, "full")
    load_images("fashion-mnist", download=True)  # there is one on this machine


@pytest.mark.parametrize("ask", [("cifar", "small"), ("mnist", "medium")])
def test_unknown_names_are_refused(ask):
    with pytest.raises(InputError, match="expected"):
        load_images(*ask)


def test_small_set_is_cut_from_a_full_file(empty):
    write(empty / "CRUNODE_DATA" / "mnist.npz", train=5100, test=1100)
    images = load_images("mnist", check=False)
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


def synthetic(count=30, color=False, classes=10):
    rng = np.random.default_rng(1)
    shape = (count, 3, 32, 32) if color else (count, 28, 28)
    return {
        "x_train": rng.integers(0, 256, shape, dtype=np.uint8),
        "y_train": (np.arange(count) % classes).astype(np.uint8),
        "x_test": rng.integers(0, 256, (10, *shape[1:]), dtype=np.uint8),
        "y_test": (np.arange(10) % classes).astype(np.uint8),
    }


def write_idx(folder, arrays, compress=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        data = as_idx(array)
        path = folder / (idx_name(name) + (".gz" if compress else ""))
        path.write_bytes(gzip.compress(data, 1) if compress else data)


def cifar_files(arrays, fine=False):
    def records(x, y):
        labels = np.stack([y // 5, y], 1) if fine else y[:, None]
        return np.concatenate([labels, x.reshape(len(x), -1)], 1).astype(np.uint8).tobytes()

    train, test = records(arrays["x_train"], arrays["y_train"]), records(arrays["x_test"], arrays["y_test"])
    if fine:
        return {"train.bin": train, "test.bin": test}
    fifth = len(train) // 5
    return {"test_batch.bin": test} | {f"data_batch_{k + 1}.bin": train[k * fifth : (k + 1) * fifth] for k in range(5)}


def same(images, arrays):
    return all(np.array_equal(getattr(images, name), arrays[name]) for name in ARRAYS)


def pretend(monkeypatch, name, arrays, sources=(), md5=None):
    """Make `arrays` the published content of a data set."""
    digests = {} if md5 else {"full": {key: hashlib.sha256(as_idx(value)).hexdigest() for key, value in arrays.items()}}
    known = replace(
        published.PUBLISHED[name],
        train=len(arrays["y_train"]),
        test=len(arrays["y_test"]),
        sources=tuple(sources),
        digests=digests,
        md5=md5,
    )
    monkeypatch.setitem(published.PUBLISHED, name, known)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("below", ["mnist", "MNIST/raw"])
def test_idx_files_are_found_and_read(empty, monkeypatch, compress, below):
    arrays = synthetic()
    pretend(monkeypatch, "mnist", arrays)
    write_idx(empty / "CRUNODE_DATA" / below, arrays, compress)
    images = load_images("mnist", "full")
    assert same(images, arrays)
    assert images.source == str(empty / "CRUNODE_DATA" / below)
    assert load_images("mnist").x_train.shape == (30, 28, 28)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_binary_files_of_cifar_are_read(empty, monkeypatch, name):
    classes = 100 if name == "cifar100" else 10
    arrays = synthetic(200, color=True, classes=classes)
    pretend(monkeypatch, name, arrays, md5="unused")
    folder = empty / "CRUNODE_DATA" / published.PUBLISHED[name].folders[0]
    folder.mkdir()
    for file, data in cifar_files(arrays, fine=classes == 100).items():
        (folder / file).write_bytes(data)
    images = load_images(name, "full")
    assert same(images, arrays)
    x, y = images.tensors("train", pool=4)
    assert x.shape == (200, 3 * 8 * 8)
    assert float(x[3, 8 * 8]) == pytest.approx(arrays["x_train"][3, 1, :4, :4].mean() / 255, abs=1e-6)
    assert int(y.max()) == classes - 1


@pytest.mark.parametrize("last", [True, False], ids=["colors last", "colors first"])
def test_npz_files_of_color_images_are_read(tmp_path, last):
    arrays = synthetic(color=True)
    written = {k: np.moveaxis(v, 1, 3) if last and v.ndim == 4 else v for k, v in arrays.items()}
    written |= {k: v.astype(np.int64)[:, None] for k, v in arrays.items() if v.ndim == 1}
    np.savez(tmp_path / "mine.npz", **written)
    images = read_images(tmp_path / "mine.npz")
    assert same(images, arrays)
    assert images.classes == 10


@pytest.mark.parametrize("array", ARRAYS)
def test_wrong_checksum_is_refused(empty, monkeypatch, array):
    arrays = synthetic()
    pretend(monkeypatch, "mnist", arrays)
    changed = arrays | {array: arrays[array].copy()}
    changed[array].flat[3] ^= 1
    np.savez(empty / "CRUNODE_DATA" / "mnist.npz", **changed)
    with pytest.raises(InputError, match=rf"published content of mnist.*{array} with sha256.*check=False"):
        load_images("mnist", "full")
    assert same(load_images("mnist", "full", check=False), changed)


def test_other_numbers_of_images_are_refused(empty):
    write(empty / "CRUNODE_DATA" / "mnist_small.npz")
    with pytest.raises(InputError, match=r"5000 and 1000 images.*got 20 and 10 images"):
        load_images("mnist")


def test_a_changed_pixel_of_the_shipped_set_would_be_seen(empty):
    images = load_images("fashion-mnist")
    arrays = {name: getattr(images, name).copy() for name in ARRAYS}
    arrays["x_test"][500, 14, 14] ^= 1
    np.savez(empty / "CRUNODE_DATA" / "fashion_mnist_small.npz", **arrays)
    with pytest.raises(InputError, match="x_test with sha256"):
        load_images("fashion-mnist")


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("array", ["x_train", "y_test"])
@pytest.mark.parametrize("keep", [0, 3, 6, -1], ids=["empty", "magic", "header", "end"])
def test_truncated_idx_files_are_refused(empty, compress, array, keep):
    folder = empty / "CRUNODE_DATA" / "mnist"
    write_idx(folder, synthetic(), compress)
    path = folder / (idx_name(array) + (".gz" if compress else ""))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=f"{path.name}.*replace the file"):
        load_images("mnist", "full", check=False)


@pytest.mark.parametrize(
    "data",
    [b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", b"\0\0\x08\0", as_idx(np.zeros(3, np.uint8)) + b"x", b"<!DOCTYPE html>"],
    ids=["floats", "no axes", "too long", "web page"],
)
def test_what_is_no_idx_file_of_bytes_is_refused(tmp_path, data):
    path = tmp_path / "labels"
    path.write_bytes(data)
    with pytest.raises(InputError, match="labels"):
        read_idx(path)


def test_flipped_bit_in_gzip_is_seen(tmp_path):
    data = bytearray(gzip.compress(as_idx(synthetic()["x_train"])))
    data[len(data) // 2] ^= 16
    (tmp_path / "images.gz").write_bytes(data)
    with pytest.raises(InputError, match=r"images\.gz"):
        read_idx(tmp_path / "images.gz")


def test_truncated_files_of_cifar_are_refused(empty):
    folder = empty / "CRUNODE_DATA" / "cifar-10-batches-bin"
    folder.mkdir()
    files = cifar_files(synthetic(50, color=True))
    files["data_batch_3.bin"] = files["data_batch_3.bin"][:-7]
    for file, data in files.items():
        (folder / file).write_bytes(data)
    with pytest.raises(InputError, match=r"data_batch_3\.bin.*truncated"):
        load_images("cifar10", "full")


def test_truncated_npz_file_is_refused(empty):
    path = empty / "CRUNODE_DATA" / "mnist.npz"
    np.savez_compressed(path, **synthetic())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"mnist\.npz"):
        load_images("mnist", "full")


def test_missing_files_are_named(empty):
    folder = empty / "CRUNODE_DATA" / "mnist"
    write_idx(folder, synthetic())
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match=r"mnist lacks t10k-labels-idx1-ubyte"):
        load_images("mnist", "full")
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte\.gz"):
        read_images(folder)


def test_images_of_another_set_are_refused(empty):
    np.savez(empty / "CRUNODE_DATA" / "mnist.npz", **synthetic(color=True))
    with pytest.raises(InputError, match=r"shape \(28, 28\).*got shape \(3, 32, 32\)"):
        load_images("mnist", "full", check=False)


@given(st.integers(1, 4).flatmap(lambda n: st.tuples(*[st.integers(0, 4)] * n)), st.booleans())
def test_idx_files_come_back(shape, compress):
    array = np.random.default_rng(sum(shape)).integers(0, 256, shape, dtype=np.uint8)
    data = as_idx(array)
    path = SimpleNamespace(read_bytes=lambda: gzip.compress(data, 1) if compress else data)
    assert np.array_equal(read_idx(path), array)
    assert read_idx(path).shape == shape


@pytest.fixture
def served(tmp_path):
    """A folder and its address on a server of this machine."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *given: Quiet(*given, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_download_fetches_checks_and_keeps(empty, served, monkeypatch):
    folder, address = served
    arrays = synthetic()
    pretend(monkeypatch, "mnist", arrays, sources=["http://127.0.0.1:9/gone/", address])
    write_idx(folder, arrays, compress=True)
    assert same(load_images("mnist", "full", download=True), arrays)
    kept = datasets._cache_folder() / "mnist"
    assert sorted(path.name for path in kept.iterdir()) == sorted(idx_name(name) + ".gz" for name in ARRAYS)
    for path in folder.iterdir():
        path.unlink()
    assert same(load_images("mnist", "full"), arrays)  # from the cache


def test_download_that_was_cut_short_goes_on(empty, served, monkeypatch):
    folder, address = served
    arrays = synthetic()
    pretend(monkeypatch, "mnist", arrays, sources=[address])
    write_idx(folder, arrays, compress=True)
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    labels.rename(folder / "away")
    with pytest.raises(InputError, match="404"):
        load_images("mnist", "full", download=True)
    assert find_images("mnist", "full") is None
    (folder / "away").rename(labels)
    (folder / "train-images-idx3-ubyte.gz").unlink()  # fetched before
    assert same(load_images("mnist", "full", download=True), arrays)


@pytest.mark.parametrize("harm", ["other", "cut", "page"])
def test_download_of_something_else_is_refused_and_not_kept(empty, served, monkeypatch, harm):
    folder, address = served
    arrays = synthetic()
    pretend(monkeypatch, "mnist", arrays, sources=[address])
    write_idx(folder, arrays, compress=True)
    path = folder / "train-images-idx3-ubyte.gz"
    data = path.read_bytes()
    path.write_bytes({"other": gzip.compress(as_idx(arrays["x_test"])), "cut": data[:-5], "page": b"<html>"}[harm])
    with pytest.raises(InputError, match=r"expected the published file.*(sha256|gzip)"):
        load_images("mnist", "full", download=True)
    assert not list(datasets._cache_folder().rglob("*ubyte*"))


def test_download_of_an_archive(empty, tmp_path, monkeypatch):
    arrays = synthetic(50, color=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for file, data in (cifar_files(arrays) | {"../../escaped.bin": b"no"}).items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{file}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(packed.getvalue())
    md5 = hashlib.md5(packed.getvalue()).hexdigest()
    pretend(monkeypatch, "cifar10", arrays, sources=[path.as_uri()], md5="0" * 32)
    with pytest.raises(InputError, match=f"md5 {md5} in place of 0000"):
        load_images("cifar10", "full", download=True)
    pretend(monkeypatch, "cifar10", arrays, sources=[path.as_uri()], md5=md5)
    images = load_images("cifar10", "full", download=True)
    assert same(images, arrays)
    assert [path.parent.name for path in empty.rglob("escaped.bin")] == ["cifar-10-batches-bin"]


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_real_data(name):
    """The whole set where $CRUNODE_DATA has it; else the subset that ships."""
    if os.environ.get("CRUNODE_DATA") and find_images(name, "full"):
        images = load_images(name, "full")
        assert images.x_train.shape == (60_000, 28, 28)
        assert images.x_test.shape == (10_000, 28, 28)
        mean = {"mnist": 0.1307, "fashion-mnist": 0.2860}[name]  # as widely published
        assert images.x_train.mean() / 255 == pytest.approx(mean, abs=5e-5)
        small = load_images(name)
        assert np.array_equal(small.y_train, datasets._subset(images, 10).y_train)
        assert np.array_equal(small.x_test, datasets._subset(images, 10).x_test)
    elif find_images(name) is None:
        pytest.skip(f"no {name} on this machine")
    images = load_images(name)
    assert isinstance(images, Images)
    assert np.bincount(images.y_train).tolist() == [500] * 10
