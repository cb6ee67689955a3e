"""Who takes part in the races: entries of the zoo, classical solvers with kernels of their own, and
other packages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast

from benchmarks import peers
from benchmarks.races import Family, Race, Steps
from benchmarks.restarted import RestartedPDHG
from mirrordescent import PDHG, CondatVu, DualFISTA, Switch, zoo
from mirrordescent.methods import Method
from mirrordescent.methods.switch import PDHG_RATIO, stencil_condat_vu

LEARNED_ENTRY = "image-tv"
CONTROL_ENTRY = f"{LEARNED_ENTRY}-control"  # the same method with the identity in place of its map
ISOTROPIC_ENTRY = (
    f"{LEARNED_ENTRY}-isotropic"  # what was learned further for isotropic total variation
)
OLDER_ENTRIES = ("photo-inpaint-stencil", "ellipse-denoise-stencil")
OVERRIDE = "BENCHMARKS_ENTRY"  # an environment variable: another entry, or the file of one
RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.5, 3.0)
RESTARTED = (  # step ratio, steps between looks, and whether the duality gap decides
    *((ratio, 32, True) for ratio in (0.1, 0.3, 0.8)),
)
AFTER = (10, 100)  # steps after which PDHG takes over


def learned_entry() -> str:
    """Return the entry to be judged: the one of the environment, else that above, or an older one
    until it is there.
    """
    return os.environ.get(OVERRIDE) or (
        LEARNED_ENTRY if LEARNED_ENTRY in zoo.list() else OLDER_ENTRIES[0]
    )


def entry(name: str) -> Method[Any]:
    """Load a learned method."""
    return cast(Method[Any], zoo.load(name))


def families(race: Race) -> Iterator[Family]:
    """Yield all solvers that minimise this very function, learned ones first."""
    denoising = race.problem.mask is None
    older = OLDER_ENTRIES if denoising else OLDER_ENTRIES[:1]
    for name in dict.fromkeys((learned_entry(), CONTROL_ENTRY, *older)):
        if name == learned_entry() or name in zoo.list():
            chosen = ISOTROPIC_ENTRY if name == LEARNED_ENTRY and race.problem.isotropic else name
            yield Family(name, "learned", [Steps(entry(chosen))])
    stencil = [Steps(stencil_condat_vu(ratio)) for ratio in RATIOS]
    yield Family("Condat–Vũ with a stencil", "learned", stencil)
    first = cast(Any, entry(older[-1]))
    handed_over = [Steps(Switch(first, after, PDHG(PDHG_RATIO))) for after in AFTER]
    yield Family(f"{older[-1]}, then PDHG", "learned", handed_over)
    yield Family("PDHG", "classical", [Steps(PDHG(ratio)) for ratio in RATIOS])
    yield Family("Condat–Vũ", "classical", [Steps(CondatVu(ratio)) for ratio in RATIOS])
    yield Family(
        "PDHG, restarted",
        "classical",
        [Steps(RestartedPDHG(*each)) for each in RESTARTED],
        alike=False,
    )
    if denoising:
        yield Family("dual FISTA", "classical", [Steps(DualFISTA())])
    yield from peers.families(race.problem)
