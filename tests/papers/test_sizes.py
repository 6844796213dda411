"""Toy and paper size of each recipe as its page says, and what makes them a size."""

import itertools
import math

import numpy as np
import pytest
import torch

from crunode.jobs.recipe import Cell, Result
from crunode_papers.cooper2021 import dimension as cooper2021_dimension
from crunode_papers.cullen2026 import sampler as cullen2026_sampler
from crunode_papers.cullen2026 import scaling as cullen2026_scaling
from crunode_papers.cullen2026 import toys as cullen2026_toys
from crunode_papers.cullen2026 import trajectory as cullen2026_trajectory
from crunode_papers.freeman2016 import connectivity as freeman2016_connectivity
from crunode_papers.li2018 import surface as li2018_surface
from crunode_papers.murfet2020 import volume as murfet2020_volume
from crunode_papers.pennington2017 import index as pennington2017_index
from crunode_papers.pennington2017 import spectrum as pennington2017_spectrum
from crunode_papers.saghir2024 import optimizers as saghir2024_optimizers
from crunode_papers.tanner import gauss_newton, lazy_training
from crunode_papers.watanabe2010 import criteria as watanabe_criteria
from crunode_papers.watanabe2013 import selection as model_selection


def settings(module, size="paper"):
    return [cell.settings for cell in module.cells(size, 0)]


def kinds(module, size, kind):
    return [s for s in settings(module, size) if s.get("kind") == kind]


def test_dimensions_are_those_of_two_hundred_manifolds_and_walks_of_a_thousand_steps():
    """r·m is 10, 20, 30 and 40 % of d, with five draws at each, for ten architectures."""
    cells = cooper2021_dimension.cells("paper", 0)
    for cell in cells:
        s = cell.settings
        assert (s["shares"], s["repeats"], s["steps"]) == ([0.1, 0.2, 0.3, 0.4], 5, 1000)
    assert sum(4 * 5 for cell in cells if cell.name in cooper2021_dimension.ARCHITECTURES) == 200
    assert [cell.name for cell in cells[-2:]] == ["linear", "repeated"]
    for cell in cooper2021_dimension.cells("toy", 0):
        s = cell.settings
        assert (len(s["shares"]), s["repeats"]) == (1, 1)
        assert 0 < s["shares"][0] < 0.5
        assert 10 < s["steps"] < 100


# Parameters of each network, weights and biases of one layer after the other.
PARAMETERS = {
    "tanh": (2 * 12 + 12) + (12 + 1),
    "sigmoid": (3 * 8 + 8) + (8 * 8 + 8) + (8 * 2 + 2),
    "gelu": (4 * 7 + 7) + 3 * (7 * 7 + 7) + (7 + 1),
    "softplus": 3 * 14 + 14 * 3,
    "sine": 5 * 12 + 12 * 4,
    "silu": (3 * 5 + 5) + (5 * 10 + 10) + (10 * 20 + 20) + (20 * 2 + 2),
    "skip": (3 * 8 + 8) + 2 * (8 * 8 + 8) + (8 + 1),
    "images": (4 * 9 + 4) + (4 * 4 * 4 + 4) + (16 * 2 + 2),
    "signals": 2 * 6 * 3 + 18 * 3,
    "relu": (4 * 40 + 40) + (40 + 1),
    "linear": 3 * 6 + 6 * 2,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_architectures_have_the_parameters_and_outputs_of_their_layers(name):
    land = cooper2021_dimension.landscape(name, 4, seed=0)
    assert land.dim == PARAMETERS[name]
    x, y = land.data.tensors()
    outputs = {"sigmoid": 2, "softplus": 3, "sine": 4, "silu": 2, "images": 2, "signals": 3, "linear": 2}.get(name, 1)
    assert y.shape == (4, outputs)
    assert torch.isfinite(land.loss()).all()
    if name in cooper2021_dimension.ARCHITECTURES:
        kind = cooper2021_dimension.ARCHITECTURES[name]
        assert (kind.outputs, kind.smooth) == (outputs, name != "relu")
        assert kind.inputs == tuple(x.shape[1:])
        # Steps get stuck at kinks: a third of the equations is asked for there.
        assert kind.ease == pytest.approx(1 if kind.smooth else 1 / 3)


def test_skip_connections_add_a_layer_to_its_input():
    skip = cooper2021_dimension._Skip(3).double()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(skip(x) - x, torch.tanh(x @ skip.layer.weight.T + skip.layer.bias))
        assert torch.allclose(cooper2021_dimension._Sine()(x), torch.sin(x))


@pytest.mark.parametrize(
    ("name", "share", "examples", "inputs", "outputs"),
    [
        ("tanh", 0.3, round(0.3 * 49), 2, 1),
        ("sine", 0.1, round(0.1 * 108 / 4), 5, 4),
        ("relu", 0.3, round(0.3 * 241 / 3), 4, 1),
        ("linear", 0.3, 3 * 3, 3, 2),
        ("repeated", 0.2, round(0.2 * 49), 2, 1),
        ("images", 0.005, 2, 25, 2),
    ],
)
@pytest.mark.parametrize("failures", [0, 2, 99])
def test_equations_are_the_share_of_the_parameters_and_up_to_ten_starts_are_tried(
    monkeypatch, name, share, examples, inputs, outputs, failures
):
    seen = []

    def solved(land):
        seen.append(land)
        value = math.nan if len(seen) <= failures else 7.0
        number = type("Number", (), {"value": value, "systematic": 0.5})
        kept = {"dimension": number, "weights": land.center, "parameters": land.dim, "equations": 5, "loss": number}
        return type("Solved", (), kept)

    def points(land, starts):
        assert starts.shape == (1, land.dim)
        first = type("Point", (), {"degenerate": type("D", (), {"value": 6.0}), "index": type("I", (), {"value": 1.0})})
        return type("Points", (), {"points": (first,)})

    monkeypatch.setattr(cooper2021_dimension, "solution_dimension", solved)
    monkeypatch.setattr(cooper2021_dimension, "critical_points", points)
    found = cooper2021_dimension._measured(name, share, 5)
    x, _ = seen[-1].data.tensors()
    assert len(x) == examples * (2 if name == "repeated" else 1)
    expected = {"share": share, "examples": examples, "inputs": inputs, "outputs": outputs, "error": 0.5}
    assert {key: found[key] for key in expected} == expected
    assert found["parameters"] == PARAMETERS[{"repeated": "tanh"}.get(name, name)]
    assert found["starts"] == len(seen) == min(failures + 1, 10)
    if failures < 10:
        assert (found["dimension"], found["hessian"], found["index"]) == (7.0, 6.0, 1.0)
    else:
        assert math.isnan(found["dimension"])
        assert (found["hessian"], found["index"]) == (None, None)


def test_the_walk_is_on_the_middle_share(monkeypatch):
    def measured(name, share, seed):
        return {"share": share, "examples": round(100 * share), "seed": seed}

    def walked(land, steps, seed):
        assert (land.n, steps) == (30, 9)
        number = lambda v: type("Number", (), {"value": v})  # noqa: E731
        path = torch.tensor([[3.0, 4.0], [9.0, 9.0]])
        values = {"largest": number(1.0), "length": number(2.0), "distance": number(3.0), "path": path}
        more = {"dimensions": torch.tensor([5.0, 4.0, 5.0]), "losses": torch.tensor([0.5, 0.25])}
        return type("Walk", (), values | more)

    monkeypatch.setattr(cooper2021_dimension, "_measured", measured)
    monkeypatch.setattr(cooper2021_dimension, "walk", walked)
    found = cooper2021_dimension.compute(
        Cell("gelu", {"shares": [0.1, 0.2, 0.3, 0.4], "repeats": 2, "steps": 9, "seed": 0})
    )
    assert [row["share"] for row in found["dimensions"]] == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4]
    assert len({row["seed"] for row in found["dimensions"]}) == 8
    assert found["walk"] == {
        "examples": 30,
        "largest": 1.0,
        "length": 2.0,
        "distance": 3.0,
        "points": 2,
        "dimensions": [4.0, 5.0],
        "losses": [0.5, 0.25],
        "weights": 5.0,
    }


def test_barriers_are_measured_at_the_widths_of_the_table():
    """Page of Freeman & Bruna: widths 2, 3, 6, 12 of ReLU units; gaps at widths 16 to 512, 24 pairs, n = 2, 3, 4."""
    for size, pairs, solutions, most, gaps, last, nets, points in (
        ("toy", 1, 3, 2, (2, 3), 128, 12, 512),
        ("paper", 5, 6, 3, (2, 3, 4), 512, 24, 4096),
    ):
        chains, units = (kinds(freeman2016_connectivity, size, kind) for kind in ("chain", "units"))
        assert [s["width"] for s in chains] == [1, 2, 4]
        assert [s["width"] for s in units] == [2, 3, 6, 12]
        assert {s["pairs"] for s in chains + units} == {pairs}
        orthants = kinds(freeman2016_connectivity, size, "orthants")
        assert [s["inputs"] for s in orthants] == list(range(1, most + 1))
        # Barriers, which have to be found, get two strings more than levels at which nothing joins.
        assert {s["strings"] for s in chains + units} == {orthants[0]["strings"] + 2}
        linear = kinds(freeman2016_connectivity, size, "linear")
        assert {s["solutions"] for s in linear} == {solutions}
        for s in linear:
            # One component is promised where hidden layers are wider than the lesser of inputs and outputs.
            assert min(s["dims"][1:-1]) >= min(s["dims"][0], s["dims"][-1])
        assert [s["dims"] for s in linear][:2] == [[3, 4, 2], [2, 3, 3, 2]]
        assert [len(s["dims"]) for s in linear][2:] == {"toy": [], "paper": [4, 5]}[size]
        found = kinds(freeman2016_connectivity, size, "gap")
        widths = [16 * 2**k for k in range(int(math.log2(last / 16)) + 1)]
        assert [(s["inputs"], s["width"]) for s in found] == [(n, m) for n in gaps for m in widths]
        assert {(s["nets"], s["points"]) for s in found} == {(nets, points)}
        cells = freeman2016_connectivity.cells(size, 0)
        assert len({c.settings["seed"] for c in cells}) == len({c.name for c in cells}) == len(cells)


def test_wider_linear_networks_are_below_the_tolerance_of_their_claim():
    for joined, verdict in ((0.019, "agrees"), (0.021, "differs")):
        value = {"components": 1, "joined": 3 * joined, "range": 3.0, "line": 2.0}
        one, low = freeman2016_connectivity.rows(
            [Result(Cell("a", {"kind": "linear", "dims": [3, 4, 2]}), value, 0.0)], "toy"
        )
        assert (one.paper, one.verdict, low.verdict) == (1, "agrees", verdict)
        assert low.ours == pytest.approx(joined)
        assert one.name == "linear 3-4-2: components"
    value["components"] = 2
    rows = freeman2016_connectivity.rows([Result(Cell("a", {"kind": "linear", "dims": [2, 3]}), value, 0.0)], "toy")
    assert rows[0].verdict == "differs"


def test_barriers_are_known_at_every_width_and_the_highest_of_all_pairs_counts():
    for kind, top, width in (("chain", 1.0, 1), ("chain", 0.0, 2), ("chain", 0.0, 4), ("units", 0.5, 2)):
        for off, verdict in ((0.03, "agrees"), (0.05, "differs")):
            pairs = [{"value": v, "error": 0.0, "line": 1.0} for v in (top, top + off, 0.0)]
            (row,) = freeman2016_connectivity.rows(
                [Result(Cell("a", {"kind": kind, "width": width}), {"pairs": pairs}, 0.0)], "toy"
            )
            assert (row.paper, row.ours, row.verdict) == (top, top + off, verdict)
    for width in (3, 6, 12):
        pairs = [{"value": 0.03, "error": 0.0, "line": 1.0}]
        (row,) = freeman2016_connectivity.rows(
            [Result(Cell("a", {"kind": "units", "width": width}), {"pairs": pairs}, 0.0)], "toy"
        )
        assert (row.paper, row.verdict) == (0.0, "agrees")


def test_gaps_are_how_far_a_path_rises_above_the_higher_of_its_ends(monkeypatch):
    heights = {}

    def measured(land, path):
        heights.setdefault("paths", []).append(path)
        return type("Path", (), {"largest": 9.0})

    monkeypatch.setattr(freeman2016_connectivity, "examine_path", measured)
    s = {"inputs": 2, "width": 4, "nets": 3, "points": 64, "seed": 0}
    found = freeman2016_connectivity._gap(s)
    assert len(found["gaps"]) == 3
    x = freeman2016_connectivity._directions(freeman2016_connectivity.derived_seed(17, 2), 64, 2)
    x[:, 0] = x[:, 0].abs()
    y = 4 * (x[:, 1] - 0.3).abs()
    for gap, corners in zip(found["gaps"], heights["paths"], strict=True):
        losses = []
        for w in corners:
            hidden, outer = w[:8].view(4, 2), w[8:]
            losses.append(float((torch.relu(x @ hidden.T) @ outer - y).square().mean()))
        assert gap == pytest.approx(9 - max(losses[0], losses[-1]), rel=1e-9)
        assert found["over_corners"] >= 9 - max(losses) - 1e-9
    assert found["loss"] == pytest.approx(
        float((torch.relu(x @ corners[0][:8].view(4, 2).T) @ corners[0][8:] - y).square().mean())
    )
    assert torch.allclose(x.norm(dim=1), torch.ones(64, dtype=torch.float64))


def test_exponents_of_gaps_are_told_with_the_mean_at_the_largest_width():
    results = [
        Result(Cell("g", {"kind": "gap", "inputs": 3, "width": m}), {"gaps": [g, 3 * g], "over_corners": o}, 0.0)
        for m, g, o in ((16, 1 / 16, 0.0), (64, 1 / 64, 3e-10), (32, 1 / 32, 1e-10))
    ]
    shown, bound, gap, corners = freeman2016_connectivity.rows(results, "toy")
    assert shown.ours == pytest.approx(-1)
    assert bound.paper == pytest.approx(-1 / 3)
    assert bound.ours >= shown.ours
    assert (gap.paper, gap.ours) == (pytest.approx(64 ** (-1 / 3)), pytest.approx(2 / 64))
    assert (corners.paper, corners.ours, corners.verdict) == (0.0, 3e-10, "agrees")
    assert {row.verdict for row in (bound, gap)} == {"agrees"}
    assert freeman2016_connectivity.rows(results[:2], "toy") == []


def test_lazy_networks_have_seven_widths_that_double():
    """Widths 128 to 8192, 64 networks at each, 8 examples."""
    assert (lazy_training.EXAMPLES, lazy_training.INPUTS) == (8, 4)
    for size, first, last, nets in (("paper", 128, 8192, 64), ("toy", 256, 1024, 24)):
        for kind in lazy_training.KINDS:
            mine = [s for s in settings(lazy_training, size) if s["kind"] == kind and "checked" not in s]
            widths = [s["width"] for s in mine]
            assert (widths[0], widths[-1]) == (first, last)
            assert all(b == 2 * a for a, b in itertools.pairwise(widths))
            assert {s["nets"] for s in mine} == {nets}


def test_gauss_newton_goes_to_nearer_and_nearer_examples():
    for size, nearest, count in (("paper", 0.125, 5), ("toy", 0.5, 2)):
        for name in gauss_newton.NETWORKS:
            near = [s["near"] for s in settings(gauss_newton, size) if s["network"] == name]
            assert (near[0], near[-1], len(near)) == (2.0, nearest, count)
            assert all(a / b == (2 if size == "paper" else 4) for a, b in itertools.pairwise(near))
    assert gauss_newton.EXAMPLES == 6
    assert [outputs for *_, outputs in gauss_newton.NETWORKS.values()] == [1, 2, 1]


def test_minimizers_and_critical_points_have_the_sizes_of_the_page():
    """Figure 6b: width 16, 64 networks, 10 000 steps; Figure 6a: width 8, and all ratios."""
    for s in settings(pennington2017_index):
        assert s["ratio"] in (0.25, 0.5, 0.75)
        if s["kind"] == "minimizers":
            assert (s["width"], s["nets"], s["steps"]) == (16, 64, 10_000)
        elif s["kind"] == "critical":
            assert (s["width"], s["units"], s["sets"]) == (8, "tanh", 1)
            assert (s["starts"], s["steps"]) == (64, 400)
        else:
            assert (s["size"], s["matrices"]) == (1000, 40)
    assert len(settings(pennington2017_index)) == 3 * (2 + 3 + 1)
    assert [s["ratio"] for s in kinds(pennington2017_index, "toy", "critical")] == [0.75]
    for s in settings(pennington2017_spectrum):
        assert {"size", "width", "nets", "steps"} & set(s) == {
            "random": {"size"},
            "untrained": {"width", "nets"},
            "trained": {"width", "nets", "steps"},
        }[s["kind"]]
        assert s.get("size", 2000) == 2000
        assert (s.get("width", 32), s.get("nets", 16), s.get("steps", 4000)) == (32, 16, 4000)


def test_surfaces_are_of_networks_with_four_twenty_and_fifty_six_layers():
    """1000 images of 14 × 14 pixels; a block has two layers, and one is before and one after all of them."""
    surfaces = [s for s in settings(li2018_surface) if "blocks" in s]
    assert {2 * s["blocks"] + 2 for s in surfaces} == {4, 20, 56}
    for s in surfaces:
        assert (s["pool"], s["n"]) == (2, 1000)


def test_criteria_are_taken_at_sizes_that_double_on_as_many_data_sets_as_the_table_says():
    for model, first, last, sets in (("regular", 100, 1600, 4000), ("singular", 50, 800, 600)):
        mine = [s for s in settings(watanabe_criteria) if s["model"] == model and "hmc" not in s]
        sizes = sorted({s["n"] for s in mine})
        assert (sizes[0], sizes[-1]) == (first, last)
        assert all(b == 2 * a for a, b in itertools.pairwise(sizes))
        for n in sizes:
            betas = sorted({s["beta"] for s in mine if s["n"] == n})
            assert betas == ([0.5, 1.0] if n == last else [1.0])
            for beta in betas:
                assert sum(s["sets"] for s in mine if (s["n"], s["beta"]) == (n, beta)) == sets
        assert {s["chains"] * s["draws"] for s in mine} == {2000}
        (hmc,) = [s for s in settings(watanabe_criteria) if s["model"] == model and "hmc" in s]
        assert (hmc["beta"], hmc["n"]) == (1.0, 60)
        assert hmc["warmup"] < hmc["draws"]


def test_models_are_chosen_on_two_hundred_data_sets_at_each_size():
    for truth, first, last, ratio in (("weak", 100, 800, 2), ("strong", 200, 51_200, 4)):
        mine = [s for s in settings(model_selection) if s["truth"] == truth]
        sizes = sorted({s["n"] for s in mine})
        assert (sizes[0], sizes[-1]) == (first, last)
        assert all(b == ratio * a for a, b in itertools.pairwise(sizes))
        hidden = sorted({s["hidden"] for s in mine})
        assert hidden == ([1, 2, 3, 4] if truth == "weak" else [2, 3, 4])
        for n, h in itertools.product(sizes, hidden):
            blocks = [s for s in mine if (s["n"], s["hidden"]) == (n, h)]
            assert sum(s["sets"] for s in blocks) == 200
            assert len({s["seed"] for s in blocks}) == 10
            assert {s["chains"] * s["draws"] for s in blocks} == {1600}
    # Models of different size see the same data.
    same = {(s["truth"], s["n"], s["seed"]) for s in settings(model_selection)}
    assert len(same) == 10 * (4 + 5)


@pytest.mark.parametrize("n", [50, 200, 3200])
def test_ladders_of_levels_go_up_by_at_most_a_factor_of_two_and_a_fifth(n):
    levels = model_selection.ladder(n)
    assert levels == sorted(levels)
    assert (levels[0], levels[-1]) == (0.01, n)
    assert min(abs(level - n / math.log(n)) for level in levels) < 1e-9 * n
    steps = [b / a for a, b in itertools.pairwise(levels)]
    assert max(steps) < 2.2 + 1e-9
    # No more levels than that takes, and one at n / log n.
    assert len(levels) - 1 <= math.ceil(math.log(n / 0.01) / math.log(2.2)) + 1


def test_volumes_get_down_by_all_their_levels():
    for s in settings(murfet2020_volume):
        assert (s["levels"], s["particles"], s["replicas"], s["moves"]) == (90, 1536, 24, 24)
    assert len(settings(murfet2020_volume)) == 9


def test_local_chains_are_those_of_the_page():
    """nβ = 10⁷, resolution 5e-4, step 10, 400 of burn-in and 300 draws: they forget in 400 steps."""
    for cell in cullen2026_trajectory.cells("paper", 0):
        labels, chains = cell.settings["chains"]["local"]
        assert (labels, chains["nbeta"], chains["warmup"], chains["draws"]) == ("own", 1e7, 400, 300)
        assert (chains["step"], chains["resolution"]) == (10, 5e-4)
        assert 2 / (chains["step"] * chains["resolution"]) == pytest.approx(400)


def test_trained_networks_of_the_scaling_recipe_have_the_rate_epochs_and_seeds_of_the_page():
    for s in kinds(cullen2026_scaling, "paper", "trained"):
        assert (s["rates"], s["epochs"], len(s["seeds"])) == ([1e-3], 2000, 3)
        assert (s["records"], s["points"]) == (2, 2)
    (cell,) = cullen2026_sampler.cells("paper", 0)
    assert (cell.settings["rates"], cell.settings["epochs"]) == ([1e-3], 2000)
    assert cell.settings["precisions"] == [1, 5, 25, 125, 625]


def test_constructed_networks_are_forty_four_with_four_levels_of_sixteen_chains():
    sampled = [s for s in settings(cullen2026_scaling) if s["kind"] != "trained" and s["chains"] is not None]
    assert {(s["chains"]["chains"], s["chains"]["draws"]) for s in sampled} == {(16, 150)}
    cases = kinds(cullen2026_scaling, "paper", "case")
    grid = kinds(cullen2026_scaling, "paper", "grid")
    assert len(cases) == 17
    assert all(s["chains"] is not None for s in cases)
    for s in cases:
        options = s["options"]
        # Each unit that is active is a unit, and training pairs are some of all.
        assert 0 < options.get("active", 1) < s["hidden"] + 1
        assert options.get("examples", 1) < s["modulus"] ** 2
        assert ("examples" in options) == (s["case"] == "subset")
        assert ("active" in options) == (s["case"] == "stage-two")
        assert ("inputs" in options) == (s["case"] in ("generic", "stage-two"))
        assert options.get("inputs", 4) == 4
    small = [s for s in cases if s["modulus"] == 3]
    assert [s["modulus"] for s in kinds(cullen2026_scaling, "toy", "case")] == [3] * len(small)
    for p in (3, 5, 7, 11):
        widths = [s["hidden"] for s in grid if s["modulus"] == p]
        assert widths == sorted(set(widths))
        # Slopes need widths below the critical one, p(p² − 1)/(3p − 2) on all pairs.
        bend = p * (p * p - 1) / (3 * p - 2)
        assert sum(k < bend for k in widths) >= 3
        assert (max(widths) > bend) == (p in (3, 5))
        assert {tuple(s["options"].items()) for s in grid} == {(("centred", True),)}


def test_toy_values_come_from_a_potential_of_so_many_examples():
    assert {s["n"] for s in settings(cullen2026_toys)} == {100_000}
    assert {s["n"] for s in settings(cullen2026_toys, "toy")} == {10_000}


def test_probes_of_saghir_forget_in_three_hundred_and_thirty_three_steps():
    for s in settings(saghir2024_optimizers):
        probe = s["probe"]
        assert 2 / (probe["step"] * probe["resolution"]) == pytest.approx(1000 / 3)
        assert (probe["chains"], probe["draws"], probe["warmup"], probe["batch"]) == (4, 500, 600, 256)
        assert np.isclose(probe["step"], 0.02)
        assert (s["epochs"], s["measure"]) == (6, [2, 6])
