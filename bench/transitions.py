"""False alarms and coverage of change points on simulated trajectories: the tables of docs/tracking.md.

python bench/transitions.py [SERIES]
"""

import sys

import numpy as np

from crunode.training.schedules import log_spaced
from crunode.training.transitions import find_transitions

STEPS = log_spaced(40, stop=50_000).steps
N, CUT = len(STEPS), 22


def found(count, rng, mean, noise, stated):
    return [find_transitions(STEPS, mean + noise * rng.normal(size=N), stated, seed=k) for k in range(count)]


def main(count):
    rng = np.random.default_rng(0)
    one, flat = np.ones(N), np.zeros(N)
    for label, mean, noise, stated in (
        ("flat, errors as stated", flat, one, one),
        ("flat, errors from 0.3 to 2", flat, np.linspace(0.3, 2, N), np.linspace(0.3, 2, N)),
        ("flat, errors three times as large as stated", flat, 3 * one, one),
        ("flat, no errors stated", flat, one, flat),
        ("steady trend", np.linspace(0, 30, N), one, one),
    ):
        alarms = np.mean([len(each) > 0 for each in found(count, rng, mean, noise, stated)])
        print(f"{label}: alarms {alarms:.1%}")
    for jump in (1.5, 2.5, 4.0, 8.0):
        for wider in (1.0, 2.0):
            mean = np.where(np.arange(N) < CUT, 0.0, jump * wider)
            ones = [each.changes[0] for each in found(count, rng, mean, wider * one, one) if len(each) == 1]
            held = np.mean([c.low <= STEPS[CUT - 1] and STEPS[CUT] <= c.high for c in ones])
            width = np.mean([STEPS.index(c.high) - STEPS.index(c.low) for c in ones])
            share = len(ones) / count
            print(f"jump {jump}, errors stated 1/{wider:g}: one {share:.1%}, held {held:.1%}, {width:.1f} visits")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
