"""Which settings of an estimate are used again."""

import crunode as cr
from crunode.estimators.warm_start import held_settings

SPEC = {
    "nbeta": [100.0, 200.0],
    "precision": 2.5,
    "chains": 7,
    "draws": 50,
    "warmup": 30,
    "seed": 3,
    "kernel": {"name": "Given"},
}


def held(labels=None, **changed):
    seen = {} if labels is None else {"labels": {"kind": labels}}
    spec = {k: v for k, v in {**SPEC, **changed}.items() if v is not None}
    return held_settings(cr.Estimate("llc", 1.0, se=0.1, spec=spec, diagnostics=seen))


def test_levels_precision_and_numbers_are_kept():
    kept = {"nbeta": (100.0, 200.0), "precision": 2.5, "chains": 7, "draws": 50, "warmup": 30}
    assert held() == kept
    assert held("own") == {**kept, "labels": "own"}


def test_rules_without_a_sampler_keep_labels_only():
    assert held(limit={}) == {}
    assert held("given", limit={}) == {"labels": "given"}
    assert held("given", kernel=None) == {"labels": "given"}
