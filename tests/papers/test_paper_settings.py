"""What papers print, written down from their text, against tables and settings of the recipes."""

import itertools
import math

import pytest

from crunode_papers.cullen2026 import critical_data as cullen2026_critical_data
from crunode_papers.cullen2026 import sampler as cullen2026_sampler
from crunode_papers.cullen2026 import scaling as cullen2026_scaling
from crunode_papers.cullen2026 import severity as cullen2026_severity
from crunode_papers.cullen2026 import toys as cullen2026_toys
from crunode_papers.cullen2026 import trajectory as cullen2026_trajectory
from crunode_papers.cullen2026 import transformer as cullen2026_transformer
from crunode_papers.murfet2020 import generalization as murfet2020_generalization
from crunode_papers.murfet2020 import rlct as murfet2020_rlct
from crunode_papers.murfet2020.published import printed
from crunode_papers.murfet2020.tempered import FIVE
from crunode_papers.saghir2024 import escape as saghir2024_escape
from crunode_papers.saghir2024 import optimizers as saghir2024_optimizers
from crunode_papers.saghir2024 import overfitting as saghir2024_overfitting
from crunode_papers.saghir2024 import smoothing as saghir2024_smoothing
from crunode_papers.saghir2024.plans import net_name

AB, B, MAP = "two-layer MCMC", "last-layer MCMC", "MAP"
LAPLACE_AB, LAPLACE_B = "two-layer Laplace", "last-layer Laplace"

# Murfet et al. 2020, companions to Figures 1, 3, 4 and 5: table, hidden layers of g, activation of h, then lines of
# method, learning coefficient and R squared.
TABLES = """
1 1 identity
two-layer MCMC;9.709027;0.966124
last-layer MCMC;6.410380;0.988921
two-layer Laplace;inf;nan
last-layer Laplace;2154.989266;0.801077
MAP;10.714216;0.951051
1 5 identity
two-layer MCMC;1.286290;0.985161
last-layer MCMC;1.298504;0.982298
two-layer Laplace;inf;nan
last-layer Laplace;2038.605589;0.803736
MAP;1.437473;0.983411
1 1 ReLU
two-layer MCMC;3.117187;0.977313
last-layer MCMC;3.152710;0.980132
3 1 identity
two-layer MCMC;36.721594;0.992839
last-layer MCMC;20.676920;0.983695
two-layer Laplace;inf;nan
last-layer Laplace;1768.655088;0.838035
MAP;inf;nan
3 5 identity
two-layer MCMC;13.729278;0.924049
last-layer MCMC;9.170642;0.945613
two-layer Laplace;inf;nan
last-layer Laplace;1943.793236;0.794679
MAP;14.123308;0.917502
3 1 ReLU
two-layer MCMC;22.175448;0.975450
last-layer MCMC;10.675455;0.968584
3 5 ReLU
two-layer MCMC;4.652483;0.922693
last-layer MCMC;3.533366;0.862125
two-layer Laplace;inf;nan
last-layer Laplace;1004.852367;0.901899
MAP;6.256696;0.940437
4 1 identity
two-layer MCMC;11.086023;0.969991
last-layer MCMC;7.377871;0.957824
two-layer Laplace;nan;nan
last-layer Laplace;30.692954;0.029238
MAP;12.947959;0.970173
4 5 identity
two-layer MCMC;0.808601;0.144260
last-layer MCMC;0.799114;0.127686
two-layer Laplace;nan;nan
last-layer Laplace;-33.817429;0.009074
MAP;1.204743;0.242671
4 1 ReLU
two-layer MCMC;5.987187;0.848490
last-layer MCMC;5.384686;0.801313
4 5 ReLU
two-layer MCMC;0.794055;0.088305
last-layer MCMC;1.141580;0.162585
"""


def entries():
    place = None
    for line in TABLES.strip().splitlines():
        if ";" not in line:
            table, layers, activation = line.split()
            place = (int(table), int(layers), activation == "ReLU")
        else:
            method, value, r2 = line.split(";")
            yield (*place, method, float(value), float(r2))


@pytest.mark.parametrize(("table", "layers", "relu", "method", "value", "r2"), list(entries()))
def test_learning_coefficients_are_as_they_are_printed(table, layers, relu, method, value, r2):
    found = printed(table, layers, relu, method)
    assert found == pytest.approx((value, r2), abs=5e-7, nan_ok=True)
    if table == 4:
        assert printed(5, layers, relu, method) == pytest.approx((value, r2), abs=5e-7, nan_ok=True)


@pytest.mark.parametrize("relu", [False, True])
def test_table_one_has_its_order_of_methods_for_five_layers_too(relu):
    """Sampled, then point, then Laplace: the order of section 5, as far as Table 1 has it."""
    values = [printed(1, 5, relu, method)[0] for method in (AB, MAP, LAPLACE_B, LAPLACE_AB)]
    assert values == sorted(values)


def test_bayes_in_the_last_layers_has_the_settings_of_appendix_a5():
    """MAP: full batch or minibatches of 32, 5000 epochs. n' = 10,000 and 30 draws of the data set. R = 1000."""
    cells = murfet2020_generalization.cells("paper", 0)
    assert len(cells) == 4
    panels = set()
    for cell in cells:
        s = cell.settings
        assert (s["tests"], s["sets"], s["epochs"], s["as_text"]) == (10_000, [0, 30], 5000, False)
        assert s["chains"] * s["draws"] == 1000
        assert len(s["sizes"]) == 10
        # Evenly spaced in log n, up to the rounding to whole numbers.
        steps = [math.log(b / a) for a, b in zip(s["sizes"], s["sizes"][1:], strict=False)]
        assert max(steps) - min(steps) < 0.01
        assert (s["sizes"][0], s["sizes"][-1]) == (200, 1000)
        layers, minibatch = cell.name.split(", ")
        for one in s["panels"]:
            assert one[0] == int(layers.split()[0])
            assert one[3] == (minibatch == "minibatch")
            panels.add(tuple(one))
    assert len(panels) == 16


def test_estimates_of_table_two_have_the_settings_of_section_six():
    """H = 5, n = 1000, prior N(0, 50²), m of 3, 4, 5; five inverse temperatures centred on 1/log 20000."""
    cells = {cell.name: cell.settings for cell in murfet2020_rlct.RECIPE.cells("paper", 0)}
    table = [s for name, s in cells.items() if name.startswith("table")]
    assert [(s["m"], s["activation"]) for s in table] == [(m, a) for m in (3, 4, 5) for a in ("relu", "silu")]
    assert all((s["n"], s["sd"], s["sets"]) == (1000, 50.0, 30) for s in table)
    assert len(FIVE) == 5
    assert sum(FIVE) / 5 == 1
    assert sorted(FIVE, reverse=True) == list(FIVE)
    phases = [s for name, s in cells.items() if name.startswith("phases")]
    assert [(s["m"], s["n"], s["sd"]) for s in phases] == [(m, 1000, 50.0) for m in (3, 4, 5)]
    # From hot to cold, over the temperatures of the table to those at which the true parameters are left.
    assert all(0 < s["hot"] < s["cold"] < s["coldest"] == 1000**2 for s in phases)
    local = [s for name, s in cells.items() if name.startswith("local")]
    assert [(s["m"], s["activation"]) for s in local] == [(m, a) for a in ("relu", "silu") for m in (3, 4, 5)]
    for s in local:
        decades = [math.log10(level) for level in s["levels"]]
        assert decades == sorted(decades)
        assert (round(decades[0], 9), round(decades[-1], 9)) == ((4, 6) if s["activation"] == "relu" else (3, 9))
        assert s["n"] == 1000
    scales = [s for name, s in cells.items() if name.startswith("prior")]
    assert [s["sd"] for s in scales] == [1, 3, 10, 500]
    assert {(s["m"], s["activation"], s["n"], s["kind"]) for s in scales} == {(3, "relu", 1000, "table")}
    assert len({s["sets"] for s in scales}) == 1
    for s in cells.values():
        assert s["warmup"] < s["draws"]
        assert s["chains"] >= 4


PRINTED_CHAINS = {"chains": 3, "warmup": 100, "draws": 600, "batch": 128, "nbeta": 30.0}


def printed_chains(settings):
    labels, chains = settings["chains"]["printed"]
    assert labels == "given"
    # ε = 1e-4 and γ = 5 at nβ = 30, in the units of nβ.
    assert chains["step"] / chains["nbeta"] == pytest.approx(1e-4)
    assert chains["resolution"] * chains["nbeta"] == pytest.approx(5)
    return {name: chains[name] for name in PRINTED_CHAINS}


def test_trainings_of_grokking_have_the_baseline_of_appendix_h1_and_change_one_thing_each():
    """p = 53, weight decay 1e-5, fraction 0.4, batch size 128, hidden dimension 1024; Fig. 3 has the rate 1e-4."""
    baseline = {"modulus": 53, "weight_decays": [1e-5], "fraction": 0.4, "batch": 128, "width": 1024, "rates": [1e-4]}
    changes = {
        "baseline": {"weight_decays": [1e-4]},  # caption of Fig. 3
        "p = 53": {},
        "p = 61": {"modulus": 61},
        "p = 71": {"modulus": 71},
        "K = 600": {"width": 600},
        "K = 800": {"width": 800},
        "K = 1000": {"width": 1000},
        "weight decay 5e-5": {"weight_decays": [0.00005]},
        "rate 1e-3": {"rates": [0.001]},
        "rate 1e-2": {"rates": [0.01]},
        "100 000 epochs": {"weight_decays": [1e-4]},
    }
    figures = ["3", "7", "7", "7", "8", "8", "8", "9", "10", "10", "3 and appendix H.1"]
    cells = cullen2026_trajectory.cells("paper", 0)
    assert [cell.name for cell in cells] == list(changes)
    for cell, figure in zip(cells, figures, strict=True):
        s = cell.settings
        assert {name: s[name] for name in baseline} == baseline | changes[cell.name]
        assert (s["condition"], s["source"]) == (cell.name, f"Fig. {figure}")
        assert printed_chains(s) == PRINTED_CHAINS
        assert s["chains"]["local"][0] == "own"
        assert s["points"] <= s["records"] <= s["epochs"]
    epochs = {cell.name: cell.settings["epochs"] for cell in cells}
    assert epochs["100 000 epochs"] == 100_000
    # Checkpoints every 100 epochs.
    assert cells[-1].settings["records"] == 100_000 / 100
    assert [len(cell.settings["seeds"]) for cell in cells] == [10, *[4] * 9, 2]
    # Higher rates take fewer epochs.
    assert epochs["rate 1e-2"] < epochs["rate 1e-3"] < epochs["baseline"] == epochs["p = 71"]


def test_severity_is_measured_over_two_decades_of_rates_at_three_weight_decays():
    """Figs. 11 and 12: weight decays 0, 1e-4 and 1e-5; Fig. 10 has rates from 1e-4 to 1e-2."""
    cells = cullen2026_severity.cells("paper", 0)
    for k, decay in enumerate((0.0, 1e-4, 1e-5)):
        slow, fast = cells[2 * k : 2 * k + 2]
        rates = slow.settings["rates"] + fast.settings["rates"]
        assert len(slow.settings["rates"]) == len(fast.settings["rates"]) == 5
        assert (rates[0], rates[-1]) == (1e-4, 1e-2)
        steps = [b / a for a, b in itertools.pairwise(rates)]
        assert steps == pytest.approx([100 ** (1 / 9)] * 9, rel=5e-3)
        for cell in (slow, fast):
            s = cell.settings
            assert s["weight_decays"] == [decay]
            assert f"weight decay {decay:g}, " in cell.name
            assert (s["modulus"], s["width"], s["batch"], s["fraction"]) == (53, 1024, 128, 0.4)
            assert printed_chains(s) == PRINTED_CHAINS
            assert s["points"] < s["records"] < s["epochs"]
            assert len(s["seeds"]) == 5
        assert ("slow" in slow.name, "fast" in fast.name) == (True, True)


def test_critical_data_is_looked_for_at_the_sizes_and_fractions_of_figure_14():
    cells = cullen2026_critical_data.cells("paper", 0)
    assert [cell.settings["modulus"] for cell in cells] == [53, 67, 79, 83, 101, 103]
    for cell in cells:
        s = cell.settings
        assert cell.name == f"M = {s['modulus']}"
        fractions = s["fractions"]
        assert fractions == sorted(fractions)
        # The others lie where the boundary is, between 0.1 and 0.3.
        assert [f for f in fractions if not 0.1 < f < 0.3 or f == 0.15] == [0.1, 0.15, 0.3, 0.4, 0.9, 0.95]
        assert (s["width"], s["batch"], len(s["seeds"])) == (1024, 128, 3)
        assert (s["rate"], s["weight_decay"]) == (1e-3, 1e-4)
        assert s["records"] < s["steps"]


def test_the_sampler_is_swept_over_the_steps_of_figure_6():
    (cell,) = cullen2026_sampler.cells("paper", 0)
    s = cell.settings
    assert s["steps"] == [0.01, 0.001, 0.0001]
    assert 5.0 in s["precisions"]
    assert [b / a for a, b in zip(s["precisions"], s["precisions"][1:], strict=False)] == [5] * 4
    assert s["nbeta"] == 30
    chains = {name: s["chains"][name] for name in ("chains", "warmup", "draws", "batch")}
    assert chains == {"chains": 3, "warmup": 100, "draws": 600, "batch": 128}
    assert (s["modulus"], s["width"], s["fraction"], s["weight_decays"]) == (53, 1024, 0.4, [1e-5])


def test_final_values_are_taken_at_three_widths_and_three_moduli():
    """Figs. 1, 2, 7 and 8: p of 53, 61, 71 and hidden dimensions of 600, 800, 1000."""
    cells = [cell.settings for cell in cullen2026_scaling.cells("paper", 0) if cell.settings["kind"] == "trained"]
    assert {(s["modulus"], s["width"]) for s in cells} == {(p, k) for p in (53, 61, 71) for k in (600, 800, 1000)}
    assert len(cells) == 9
    for s in cells:
        assert printed_chains(s) == PRINTED_CHAINS
        assert (s["batch"], s["fraction"], len(s["rates"]), len(s["weight_decays"])) == (128, 0.4, 1, 1)


def test_values_of_the_landscapes_of_figure_5():
    values = {name: value for name, (_, _, value) in cullen2026_toys.POINTS.items() if value is not None}
    assert sorted(values.values()) == [0.25, 0.25, 0.5, 1.0]
    assert {cell.name for cell in cullen2026_toys.cells("paper", 0)} == set(cullen2026_toys.POINTS)


def test_the_transformer_is_trained_on_the_data_of_figure_13_as_in_the_baseline_and_twice_otherwise():
    base, more, decayed = [cell.settings for cell in cullen2026_transformer.cells("paper", 0)]
    assert (base["weight_decay"], base["fraction"], base["optimizer"]) == (1e-5, 0.4, "adam")
    assert (more["weight_decay"], more["fraction"], more["optimizer"]) == (1e-5, 0.8, "adam")
    assert (decayed["weight_decay"], decayed["fraction"], decayed["optimizer"]) == (1.0, 0.4, "adamw")
    for s in (base, more, decayed):
        assert (s["modulus"], s["batch"], len(s["seeds"])) == (53, 128, 5)
        # A head has a part of the width, and a transformer of several layers more than one.
        assert s["layers"] == 2
        assert s["width"] % s["heads"] == 0
        assert s["width"] / s["heads"] == 32
        assert s["points"] < s["records"] < s["epochs"]
        assert printed_chains(s) == PRINTED_CHAINS
        assert (s["chains"]["local"][0], s["chains"]["local"][1]["batch"]) == ("own", 128)
    # Twice the examples in half of the epochs are as many steps.
    assert base["epochs"] * base["fraction"] == more["epochs"] * more["fraction"]
    assert decayed["epochs"] > base["epochs"]


OPTIMIZERS = {"sgd", "kaldi", "plain", "empirical", "true"}


@pytest.mark.parametrize("size", ["paper", "full"])
def test_natural_gradients_have_the_settings_of_figures_1_and_2(size):
    """Fig. 1: α = 1e-2, Fig. 2: α = 1e-1; learning rate 1e-2, ε = 1e-10, batch size 128."""
    runs = {}
    for cell in saghir2024_optimizers.cells(size, 0):
        s = cell.settings
        assert (s["lr"], s["epsilon"], s["batch"], s["examples"], s["pool"]) == (1e-2, 1e-10, 128, 60_000, 1)
        assert s["alpha"] == {"Fig. 1": 1e-2, "Fig. 2": 1e-1}[s["figure"]]
        assert s["measure"] == sorted(set(s["measure"]))
        assert s["measure"][-1] == s["epochs"]
        runs.setdefault((s["data"], s["figure"], net_name(s["net"])), set()).add(s["optimizer"])
    assert {data for data, _, _ in runs} == {"fashion-mnist", "mnist"}
    assert {net for _, figure, net in runs if figure == "Fig. 2"} >= {"LeNet-5"}
    # Over a range of model sizes, one and two hidden layers, each twice as wide as one before, or four times.
    sizes = {tuple(map(int, net.split()[1::2])) for _, figure, net in runs if figure == "Fig. 1"}
    assert {layers for layers, _ in sizes} == {1, 2}
    assert {width for _, width in sizes} <= {32, 64, 128, 256}
    assert all(kinds <= OPTIMIZERS and {"sgd", "kaldi", "plain", "empirical"} <= kinds for kinds in runs.values())
    if size == "full":
        assert sizes == {(layers, width) for layers in (1, 2) for width in (32, 64, 128, 256)}
        assert {net for _, figure, net in runs if figure == "Fig. 2"} == {"LeNet-5", "FFNN 2 × 256"}
        assert set(map(frozenset, runs.values())) == {frozenset(OPTIMIZERS)}
    else:
        assert sizes == {(1, 32), (1, 128), (2, 32), (2, 128)}
        assert {net for _, figure, net in runs if figure == "Fig. 2"} == {"LeNet-5", "FFNN 2 × 128"}


@pytest.mark.parametrize("recipe", [saghir2024_optimizers, saghir2024_smoothing, saghir2024_escape])
def test_ten_repeats_in_full_and_four_at_paper_size(recipe):
    for size, repeats in (("full", 10), ("paper", 4)):
        cells = recipe.cells(size, 0)
        assert {cell.settings["repeat"] for cell in cells} == set(range(repeats))
        # The probe has more draws than gradient noise, and chains that forget their beginning.
        probe = cells[0].settings["probe"]
        assert (probe["chains"], probe["batch"]) == (4, 256)
        assert probe["warmup"] * probe["step"] * probe["resolution"] > 3
        assert probe["warmup"] + probe["draws"] == 1100


def test_networks_that_overfit_have_the_settings_of_figures_7_and_8():
    """α = 1e-1, lr = 1e-2, ε = 1e-10, batch size 128, on Fashion MNIST."""
    for size in ("paper", "full"):
        for cell in saghir2024_overfitting.cells(size, 0):
            s = cell.settings
            assert (s["alpha"], s["lr"], s["epsilon"], s["batch"], s["data"]) == (
                0.1,
                0.01,
                1e-10,
                128,
                "fashion-mnist",
            )
            assert net_name(s["net"]) == "FFNN 2 × 256"
            assert s["measure"] == sorted(set(s["measure"]))
            assert (s["measure"][0], s["measure"][-1]) == (1, s["epochs"])
            assert s["examples"] == {"paper": 10_000, "full": 60_000}[size]
    full = {cell.settings["epochs"] for cell in saghir2024_overfitting.cells("full", 0)}
    paper = {cell.settings["epochs"] for cell in saghir2024_overfitting.cells("paper", 0)}
    assert (full, paper) == ({60}, {40})


@pytest.mark.parametrize("size", ["paper", "full"])
def test_escapes_have_the_networks_and_rates_of_figures_4_to_6(size):
    """FFNN of 2 layers with 256 nodes. Fig. 4: both at 1e-2. Fig. 5: SGD at 1e-4, NGD at 1e-4, 1e-3, 1e-2; Fig. 6: SGD
    raised to 1e-2."""
    found = {}
    for cell in saghir2024_escape.cells(size, 0):
        s = cell.settings
        assert net_name(s["net"]) == "FFNN 2 × 256"
        assert (s["alpha"], s["epsilon"], s["batch"]) == (1e-2, 1e-10, 128)
        assert s["measure"][-1] == s["epochs"]
        trunk = s["trunk"]
        assert (trunk["optimizer"], trunk["epochs"]) == ("sgd", {"paper": 8, "full": 20}[size])
        assert trunk["lr"] == {"Fig. 4": 1e-2, "Fig. 5": 1e-4}[s["scene"]]
        # The branch that goes on as before measures half way to the split too.
        same = s["optimizer"] == "sgd" and s["lr"] == trunk["lr"]
        assert trunk["measure"] == ([-trunk["epochs"] // 2, 0] if same else [0])
        found.setdefault((s["scene"], s["data"]), set()).add((s["optimizer"], s["lr"]))
    assert found == {
        ("Fig. 4", "fashion-mnist"): {("sgd", 1e-2), ("kaldi", 1e-2), ("empirical", 1e-2)},
        ("Fig. 5", "mnist"): {
            ("sgd", 1e-4),
            ("sgd", 1e-2),
            *((kind, lr) for kind in ("kaldi", "empirical") for lr in (1e-4, 1e-3, 1e-2)),
        },
    }


@pytest.mark.parametrize("size", ["paper", "full"])
def test_smoothing_begins_at_the_constants_of_the_paper_and_goes_up_by_decades(size):
    for cell in saghir2024_smoothing.cells(size, 0):
        s = cell.settings
        assert (s["lr"], s["batch"], s["data"]) == (1e-2, 128, "fashion-mnist")
        assert s["measure"] == [s["epochs"]]
        if "sweep" not in s:
            assert s["optimizer"] in ("sgd", "plain")
            continue
        other = "epsilon" if s["sweep"] == "alpha" else "alpha"
        assert s[other] == {"alpha": 1e-2, "epsilon": 1e-10}[other]
        decade = math.log10(s[s["sweep"]])
        assert decade == pytest.approx(round(decade), abs=1e-9)
        assert s["optimizer"] in ("kaldi", "empirical")
    for kind in ("kaldi", "empirical"):
        for name, own in (("alpha", 1e-2), ("epsilon", 1e-10)):
            cells = [c.settings for c in saghir2024_smoothing.cells(size, 0) if c.settings["optimizer"] == kind]
            values = sorted({s[name] for s in cells if s["sweep"] == name})
            assert own in values
            assert len(values) >= 3
            # Some of them smooth by three decades more at least.
            assert values[-1] >= 999 * own
