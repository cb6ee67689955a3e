"""Solvers that take part in the races: entries of the zoo, classical ones and other packages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast

from benchmarks import peers
from benchmarks.races import Family, Steps, TVRace
from benchmarks.restarted import RestartedPDHG
from mirrordescent import PDHG, CondatVu, DualFISTA, Switch, zoo
from mirrordescent.methods import Method
from mirrordescent.methods.switch import PDHG_RATIO, stencil_condat_vu
from mirrordescent.racing import RELAXATIONS

LEARNED_ENTRY = "image-tv"
CONTROL_ENTRY = f"{LEARNED_ENTRY}-control"  # the same method with the identity in place of its map
ISOTROPIC_ENTRY = f"{LEARNED_ENTRY}-isotropic"  # trained further for isotropic total variation
OLDER_ENTRIES = ("photo-inpaint-stencil", "ellipse-denoise-stencil")
OVERRIDE = "BENCHMARKS_ENTRY"  # environment variable with the name or the file of another entry
RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.5, 3.0)
RELAXATION = 1.8  # of PDHG with restarts, and of PDHG after a switch
# Ratio of step sizes, steps between checks, whether the duality gap decides, and relaxation.
RESTARTED = tuple((ratio, 32, True, RELAXATION) for ratio in (0.1, 0.3, 0.8))
SWITCH_AFTER = (10, 100)  # steps before the switch to PDHG


def learned_entry() -> str:
    """Return the entry to be judged: that of the environment, or image-tv, or an older one."""
    if override := os.environ.get(OVERRIDE):
        return override
    return LEARNED_ENTRY if LEARNED_ENTRY in zoo.list() else OLDER_ENTRIES[0]


def entry(name: str) -> Method[Any]:
    """Load a learned method."""
    return cast(Method[Any], zoo.load(name))


def families(race: TVRace) -> Iterator[Family]:
    """Yield all solvers of the problems of a race, learned ones first."""
    denoising = race.problem.mask is None
    older = OLDER_ENTRIES if denoising else OLDER_ENTRIES[:1]
    for name in dict.fromkeys((learned_entry(), CONTROL_ENTRY, *older)):
        if name == learned_entry() or name in zoo.list():
            isotropic = name == LEARNED_ENTRY and race.problem.isotropic
            yield Family(name, "learned", [Steps(entry(ISOTROPIC_ENTRY if isotropic else name))])
    pairs = [(ratio, relaxation) for ratio in RATIOS for relaxation in RELAXATIONS]
    stencil = [Steps(stencil_condat_vu(*pair)) for pair in pairs]
    yield Family("Condat–Vũ with a stencil", "learned", stencil)
    first = cast(Any, entry(older[-1]))
    switched = [Steps(Switch(first, after, PDHG(PDHG_RATIO, RELAXATION))) for after in SWITCH_AFTER]
    yield Family(f"{older[-1]}, then PDHG", "learned", switched)
    yield Family("PDHG", "classical", [Steps(PDHG(*pair)) for pair in pairs])
    explicit = [Steps(CondatVu(ratio, relaxation=relaxation)) for ratio, relaxation in pairs]
    yield Family("Condat–Vũ", "classical", explicit)
    restarted = [Steps(RestartedPDHG(*setting)) for setting in RESTARTED]
    yield Family("PDHG, restarted", "classical", restarted, equal_cost=False)
    if denoising:
        yield Family("dual FISTA", "classical", [Steps(DualFISTA())])
    yield from peers.families(race.problem)
