"""The recipe toy-volumes, slowed down: so far that a person can watch it, and so far that it has to be stopped."""

import time
from dataclasses import replace

from crunode.examples import volumes


def watched(cell):
    time.sleep(0.5)
    return volumes.compute(cell)


def endless(cell):
    time.sleep(600)
    return volumes.compute(cell)


WATCHED = replace(volumes.RECIPE, name="watched-volumes", compute=watched)
ENDLESS = replace(volumes.RECIPE, name="endless-volumes", compute=endless)
