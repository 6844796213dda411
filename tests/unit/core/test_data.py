"""Data in any form: the same examples, the same n, nothing changed."""

import collections
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from crunode.core.data import as_examples, leaves, map_tree
from crunode.core.landscape import Landscape
from crunode.errors import InputError

X = torch.randn(37, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


class Rows(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class SizedStream(Stream):
    def __len__(self):
        return len(X)


def model():
    net = torch.nn.Linear(3, 1)
    torch.nn.init.constant_(net.weight, 0.5)
    torch.nn.init.constant_(net.bias, 0.1)
    return net


def by_name(model, batch):
    return 0.5 * (model(batch["x"]) - batch["y"]).square().sum(1)


def loader(**options):
    return DataLoader(TensorDataset(X, Y), **options)


def dicts():
    return [{"x": X[a : a + 10], "y": Y[a : a + 10]} for a in range(0, len(X), 10)]


FORMS = {
    "tuple": lambda: (X, Y),
    "list": lambda: [X, Y],
    "numpy": lambda: (X.numpy(), Y.numpy()),
    "tensor dataset": lambda: TensorDataset(X, Y),
    "dataset": Rows,
    "loader": lambda: loader(batch_size=8),
    "shuffled": lambda: loader(batch_size=8, shuffle=True),
    "shuffled with generator": lambda: loader(batch_size=8, shuffle=True, generator=torch.Generator()),
    "drop_last": lambda: loader(batch_size=8, drop_last=True),
    "no batches": lambda: DataLoader([(X[a : a + 10], Y[a : a + 10]) for a in range(0, len(X), 10)], batch_size=None),
    "collate_fn": lambda: DataLoader(list(range(len(X))), batch_size=5, collate_fn=lambda items: (X[items], Y[items])),
    "subset sampler": lambda: loader(batch_size=8, sampler=SubsetRandomSampler(range(len(X)))),
    "batch sampler": lambda: loader(batch_sampler=BatchSampler(RandomSampler(Rows()), 8, drop_last=True)),
    "sized stream": SizedStream,
    "loader of a sized stream": lambda: DataLoader(SizedStream(), batch_size=8),
    "list of batches": lambda: [(X[a : a + 10], Y[a : a + 10]) for a in range(0, len(X), 10)],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_gives_the_same_landscape(form):
    expected = Landscape(model(), (X, Y), "gaussian")
    land = Landscape(model(), FORMS[form](), "gaussian")
    assert land.n == 37
    assert land.data.stacked
    torch.testing.assert_close(land.losses(), expected.losses())
    torch.testing.assert_close(land.loss(), expected.loss())


@pytest.mark.parametrize("data", [{"x": X, "y": Y}, dicts(), tuple(dicts())], ids=["dict", "list", "tuple"])
def test_mappings(data):
    expected = Landscape(model(), (X, Y), "gaussian").losses()
    torch.testing.assert_close(Landscape(model(), data, by_name).losses(), expected)


def test_named_tuples_stay_named():
    Pair = collections.namedtuple("Pair", "x y")
    land = Landscape(model(), [Pair(X, Y)], lambda model, batch: (model(batch.x) - batch.y).square().sum(1))
    assert land.n == 37
    assert map_tree(lambda t: t.shape, Pair(X, Y)).y == Y.shape


@pytest.mark.parametrize("data", [Stream, lambda: iter(dicts()), lambda: (b for b in dicts())])
def test_streams_are_read_as_far_as_n_says(data):
    assert as_examples(data(), n=13).n == 13
    with pytest.raises(InputError, match="pass n="):
        as_examples(data())
    with pytest.raises(InputError, match="got only 37"):
        as_examples(data(), n=38)


def test_an_unsized_stream_in_a_loader_needs_n():
    assert as_examples(DataLoader(Stream(), batch_size=8), n=20).n == 20
    with pytest.raises(InputError, match="pass n="):
        as_examples(DataLoader(Stream(), batch_size=8))


@pytest.mark.parametrize("form", ["tuple", "dataset", "loader", "list of batches"])
def test_n_takes_the_first_examples_and_no_more_than_there_are(form):
    torch.testing.assert_close(as_examples(FORMS[form](), n=11).tensors()[0], X[:11])
    with pytest.raises(InputError, match="lower n"):
        as_examples(FORMS[form](), n=38)


def test_a_data_set_without_length_is_read_up_to_n():
    class Endless(Dataset):
        def __getitem__(self, index):
            return X[index % 37], Y[index % 37]

    assert as_examples(Endless(), n=50).n == 50
    with pytest.raises(InputError, match="pass n="):
        as_examples(Endless())


@pytest.mark.parametrize("batched", [True, False])
def test_a_sampler_of_a_subset_is_followed_in_a_fixed_order(batched):
    sampler = SubsetRandomSampler([4, 20, 9])
    if batched:
        data = loader(batch_sampler=BatchSampler(sampler, 2, drop_last=False))
    else:
        data = loader(batch_size=2, sampler=sampler)
    torch.testing.assert_close(as_examples(data).tensors()[0], X[[4, 9, 20]])


def test_a_sampler_with_repeats_counts_examples_as_often_as_it_picks_them():
    sampler = WeightedRandomSampler([1.0] * 36 + [1000.0], 50)
    first, second = (as_examples(loader(sampler=sampler)).tensors()[0] for _ in range(2))
    assert len(first) == 50
    assert (first == X[36]).all(1).sum() > 40
    torch.testing.assert_close(first, second)


def test_custom_samplers_keep_their_own_random_state():
    class Halves(SequentialSampler):
        def __init__(self):
            super().__init__(range(37))
            self.numpy, self.python, self.old = np.random.default_rng(3), random.Random(3), np.random.RandomState(3)

        def __iter__(self):
            self.old.rand()
            self.python.random()
            return iter(self.numpy.permutation(37)[:18].tolist())

    sampler = Halves()
    before = sampler.numpy.bit_generator.state, sampler.python.getstate(), sampler.old.get_state()[1].tolist()
    first = as_examples(loader(sampler=sampler)).tensors()[0]
    after = sampler.numpy.bit_generator.state, sampler.python.getstate(), sampler.old.get_state()[1].tolist()
    assert before == after
    torch.testing.assert_close(first, as_examples(loader(sampler=sampler)).tensors()[0])


def test_augmentation_is_found_and_frozen():
    class Augmented(TensorDataset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + 0.1 * torch.randn(3), y

    data = Augmented(X, Y)
    land = Landscape(model(), data, "gaussian")
    assert [f.code for f in land.findings] == ["DATA501"]
    assert land.fingerprint() == Landscape(model(), DataLoader(data, shuffle=True), "gaussian").fingerprint()
    assert not any(f.code == "DATA501" for f in Landscape(model(), Rows(), "gaussian").findings)


def test_missing_values_are_no_augmentation():
    x = X.clone()
    x[0, 0] = float("nan")
    assert as_examples(DataLoader([(a, b) for a, b in zip(x, Y, strict=True)])).findings == ()


def test_batches_of_unlike_shapes_are_kept_as_batches():
    ragged = [torch.ones(2, 5), torch.ones(3, 7), torch.ones(1, 5)]
    data = DataLoader(ragged, batch_size=None)
    land = Landscape(model(), data, lambda model, batch: (model.weight.sum() * batch).square().mean(1))
    assert (land.n, land.data.stacked) == (6, False)
    assert land.losses().shape == (6,)
    torch.testing.assert_close(land.loss().float(), land.losses().mean())
    assert land.data.take(torch.tensor([4])).shape == (3, 7)


def test_a_collate_function_gets_groups_of_the_batch_size():
    sizes = []

    def padded(items):
        sizes.append(len(items))
        return torch.nn.utils.rnn.pad_sequence(items, batch_first=True)

    data = DataLoader([torch.ones(k) for k in range(1, 8)], batch_size=3, collate_fn=padded)
    examples = as_examples(data)
    assert examples.n == 7
    assert max(sizes) == 3
    assert [leaves(b)[0].shape for b in examples.passes(100)] == [(3, 3), (3, 6), (1, 7)]


def test_passes_cover_the_data_once_in_order():
    examples = as_examples((X, Y))
    for size in (1, 5, 37, 100):
        torch.testing.assert_close(torch.cat([batch[0] for batch in examples.passes(size)]), X)


def test_gradients_do_not_flow_into_the_data():
    x = X.clone().requires_grad_()
    assert not any(t.requires_grad for t in as_examples((x * 2, Y)).tensors())


BAD = {
    "empty tensors": ((X[:0], Y[:0]), "at least one example, got none"),
    "empty list": ([], "got none; was the iterator"),
    "empty data set": (DataLoader([]), "got an empty one"),
    "empty subset": (DataLoader(Rows(), sampler=SubsetRandomSampler([])), "got an empty one"),
    "no tensors": ([{"x": 1}], "collate the examples into tensors"),
    "no batch axis": (torch.tensor(1.0), "share their leading axis"),
    "unequal lengths": ((X, Y[:-1]), r"got shapes \[\(37, 3\), \(36, 1\)\]"),
    "text arrays": (np.array(["a", "b"]), "numeric arrays"),
    "objects": ([SimpleNamespace(x=X)], "got SimpleNamespace without any"),
    "uncollatable": (DataLoader([object()] * 3), "give a DataLoader with a collate_fn"),
    "a number": (3, "got int"),
    "a text": ("train.csv", "got str"),
    "None": (None, "got NoneType"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused_with_what_to_do(case):
    data, message = BAD[case]
    with pytest.raises(InputError, match=message):
        as_examples(data)


@pytest.mark.parametrize("n", [0, -1, 2.5, True, "10"])
def test_bad_n_is_refused(n):
    with pytest.raises(InputError, match="positive whole number"):
        as_examples((X, Y), n=n)
