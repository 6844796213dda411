import itertools
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crunode.core.result import Estimate
from crunode.store.chunks import pack, unpack
from crunode.store.documents import diff, dumps, loads, plain
from crunode.store.run_store import RunStore, load_estimate, save_estimate

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=10).filter(lambda name: name != "__metadata__")
dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(),
).filter(lambda dtype: dtype.itemsize <= 8)
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8"), max_size=8)
specs = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)),
    max_size=4,
).filter(lambda spec: "$float" not in repr(spec))  # the marker of non-finite numbers is taken


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as undoing:
        undoing.setattr(os, "fsync", lambda handle: None)
        yield


def same(one, other):
    return one.dtype.newbyteorder("=") == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


@given(st.dictionaries(names, arrays, max_size=3), specs)
def test_packing_round_trip(content, meta):
    back, found = unpack(pack(content, meta))
    assert back.keys() == content.keys()
    assert all(same(content[name], back[name]) for name in content)
    assert dumps(found) == dumps(meta)


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=4)), st.randoms())
def test_packing_keeps_values_of_any_memory_order(value, random):
    axes = list(range(value.ndim))
    random.shuffle(axes)
    view = value.transpose(axes)[::-1]
    assert same(view, unpack(pack({"x": view}))[0]["x"])


@given(specs)
def test_documents_round_trip(spec):
    assert diff(spec, loads(dumps(spec))) == []
    assert diff(spec, loads(dumps(spec, indent=1))) == []
    assert dumps(loads(dumps(spec))) == dumps(spec)


@given(specs, specs)
def test_diff_is_empty_only_for_equal_specs(one, other):
    assert (diff(one, other) == []) == (dumps(one) == dumps(other) or plain(one) == plain(other))
    assert len(diff(one, other)) == len(diff(other, one))


@st.composite
def runs(draw):
    chains = draw(st.permutations(range(draw(st.integers(1, 5)))))
    cuts = sorted(draw(st.sets(st.integers(1, len(chains) - 1)))) if len(chains) > 1 else []
    groups = [list(chains[a:b]) for a, b in zip([0, *cuts], [*cuts, len(chains)], strict=True)]
    total = draw(st.integers(0, 6))
    content = {
        name: draw(hnp.arrays(draw(dtypes), (len(chains), total, *draw(hnp.array_shapes(max_dims=2, max_side=2)))))
        for name in draw(st.sets(names, min_size=1, max_size=3))
    }
    stops = [sorted(draw(st.sets(st.integers(1, total)))) if total else [] for _ in groups]
    return groups, content, total, stops


@given(runs(), specs, st.integers(0, 2**64))
def test_run_round_trip_for_any_grouping_and_chunking(run, spec, seed):
    groups, content, total, stops = run
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "run")
        store = RunStore.create(folder, spec=spec, groups=groups, seed=seed, provenance={})
        for group, chains in enumerate(groups):
            store.resume(group)
            edges = [0, *stops[group], total]
            for start, stop in itertools.pairwise(edges):
                part = {name: value[chains, start:stop] for name, value in content.items()}
                store.append(group, "draws", part, {}, {"step": stop})
            assert store.resume(group)[1] == {"step": total}
        store.finish("complete")
        back, warmup = RunStore.open(folder).read()
        assert warmup == {}
        assert back.keys() == content.keys()
        assert all(same(content[name], back[name]) for name in content)
        again = RunStore.create(folder, spec=spec, groups=groups, seed=seed, provenance={})
        assert diff(again.spec, spec) == []
        assert again.manifest["seed"] == seed


@given(names, st.floats(), st.floats(0, 10), specs)
def test_estimate_round_trip(name, value, se, spec):
    estimate = Estimate(name, value, se, spec=spec, diagnostics=spec)
    with tempfile.TemporaryDirectory() as folder:
        save_estimate(folder, estimate)
        assert dumps(load_estimate(folder, name).to_dict()) == dumps(estimate.to_dict())
