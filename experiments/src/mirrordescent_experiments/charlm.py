"""A small language model: a transformer on the source text of Python's standard library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mirrordescent import zoo
from mirrordescent._internal import cache
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.training_tasks import End, Task, Transformer
from mirrordescent_experiments.contestants import (
    CONTROL,
    FALLING,
    HAND,
    HAND_SETTINGS,
    MULTIPLES,
    ONCE,
    Setting,
    TunableOptimiser,
    by_hand,
    control,
    learned,
    muon_in_single_precision,
    rivals,
)
from mirrordescent_experiments.intervals import paired
from mirrordescent_experiments.ledger import TEST_SEED, Ledger, number, written
from mirrordescent_experiments.result import Claim, Curve, Panel, Result, Table
from mirrordescent_experiments.scales import Say, Scale
from mirrordescent_experiments.training_claims import at_most

TRAINING = "training loss"
VALIDATION = "validation loss"
QUANTITIES = {
    TRAINING: "nats a character of the text trained on",
    VALIDATION: "nats a character of text kept for validation",
}


@dataclass(frozen=True)
class Size:
    """Size of the experiment: network, text, networks of each optimiser, points of a curve."""

    task: Task
    networks: int
    looks: int


SIZES: dict[Scale, Size] = {
    "quick": Size(
        Task("charlm", lambda: Transformer(8, 1, 2, 8), "stdlib", 3, 4, 8, evaluated=16), 2, 3
    ),
    "standard": Size(
        Task("charlm", lambda: Transformer(64, 3, 4, 64), "stdlib", 300, 16, 64), 3, 15
    ),
    "paper": Size(
        Task("charlm", lambda: Transformer(128, 4, 4, 64), "stdlib", 1000, 32, 64), 10, 20
    ),
}


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Tune rivals on one network, and train others for equal steps and equal time."""
    size = SIZES[scale]
    task = size.task
    path = None if scale == "quick" else cache.directory() / f"charlm-{scale}.json"
    ledger = Ledger(path, directory, say)
    contestants = entrants()
    chosen = {each.name: ledger.tuned(task, each) for each in contestants}
    result = Result(
        "charlm",
        "A small language model of characters",
        {
            "scale": scale,
            "parameters": sum(p.numel() for p in task.model().parameters()),
            "steps": task.steps,
            "batch": task.batch,
            "length": task.length,
            "networks": size.networks,
            "tuning": (
                "on one network, over learning rates, falling schedules and β₂ of AdamW; shown "
                "are others"
            ),
        },
    )
    runs = []
    for contestant in contestants:
        runs.append(_curves(size, contestant, chosen[contestant.name], directory))
        say(f"{contestant.name}: {float(runs[-1][VALIDATION].values[-1].mean()):.4g}")
    for quantity, meaning in QUANTITIES.items():
        curves = [each[quantity] for each in runs]
        result.panels[quantity] = Panel(curves, meaning, scales=("linear", "linear"))
        result.panels[f"{quantity} against time"] = Panel(
            curves, meaning, "seconds", ("linear", "linear")
        )
    result.tables["At the end, mean over networks"] = Table(
        ("optimiser", "setting", *QUANTITIES, "seconds of steps"),
        [
            (
                c.name,
                written(chosen[c.name]),
                *(f"{_end(each[q]).mean():.4f}" for q in QUANTITIES),
                f"{each[TRAINING].seconds[-1]:.1f}",
            )
            for c, each in zip(contestants, runs, strict=True)
        ],
    )
    timed = _equal_seconds(ledger, size, contestants, chosen, result)
    if scale != "quick":
        ours = {quantity: _end(runs[0][quantity]) for quantity in QUANTITIES}
        names = [contestant.name for contestant in contestants[1:]]
        result.claims = [
            *equal_steps_claims(result.panels, names),
            *equal_seconds_claims(ours, timed),
        ]
    return result


def entrants() -> list[TunableOptimiser]:
    """Return the entry, the geometry set by hand, rivals, and the entry with identity maps."""
    entry: Any = zoo.load(ENTRY)
    return [
        TunableOptimiser(ENTRY, learned(entry), ONCE, of_entry=True),
        TunableOptimiser(HAND, by_hand(), HAND_SETTINGS),
        *rivals(FALLING),
        TunableOptimiser(CONTROL, control(entry), MULTIPLES, of_entry=True),
    ]


def _curves(
    size: Size, contestant: TunableOptimiser, setting: Setting, directory: Path | None
) -> dict[str, Curve]:
    """Train networks one after the other, and return both losses along the way."""
    task = size.task
    every = max(1, size.task.steps // size.looks)
    with muon_in_single_precision():
        runs = [
            list(task.along(contestant.make(*setting), TEST_SEED + i, directory, every=every))
            for i in range(size.networks)
        ]
    name = (
        contestant.name
        if len(contestant.settings) == 1
        else f"{contestant.name} ({written(setting)})"
    )
    looks = [k for k, _ in runs[0]]
    found = torch.tensor([[end for _, end in each] for each in runs], dtype=torch.float64)
    seconds = found[:, :, End._fields.index("seconds")].mean(0).tolist()
    fields = {TRAINING: End._fields.index("loss"), VALIDATION: End._fields.index("test_loss")}
    return {
        quantity: Curve(name, looks, seconds, found[:, :, i].T) for quantity, i in fields.items()
    }


def _end(curve: Curve) -> Tensor:
    return curve.values[-1]


def _equal_seconds(
    ledger: Ledger,
    size: Size,
    contestants: Sequence[TunableOptimiser],
    chosen: Mapping[str, Setting],
    result: Result,
) -> dict[str, dict[str, Tensor]]:
    """Train rivals for the time of the entry's run, with their schedules stretched.

    The geometry set by hand and the control take the entry's steps, with other maps.
    """
    rows = []
    found = {}
    task = size.task
    entry = contestants[0]
    for rival in (each for each in contestants[1:] if not each.of_entry and each.name != HAND):
        ratio = ledger.pace(task, entry, rival)
        steps = max(1, round(ratio * task.steps))
        ends = [
            ledger.run(task, rival, chosen[rival.name], TEST_SEED + i, steps)
            for i in range(size.networks)
        ]
        losses = ([number(end.loss) for end in ends], [number(end.test_loss) for end in ends])
        found[rival.name] = {
            q: torch.tensor(each, dtype=torch.float64)
            for q, each in zip(QUANTITIES, losses, strict=True)
        }
        rows.append(
            (
                rival.name,
                f"{ratio:.2f}",
                str(steps),
                *(f"{found[rival.name][q].mean():.4f}" for q in QUANTITIES),
            )
        )
    result.tables[f"In the time of {task.steps} steps of {ENTRY}"] = Table(
        ("optimiser", "time of the entry's training step, to its own", "steps", *QUANTITIES), rows
    )
    return found


def equal_steps_claims(panels: Mapping[str, Panel], rivals: Sequence[str]) -> list[Claim]:
    """Judge whether the entry ends below each rival after as many steps."""
    return [
        at_most(panels[quantity], ENTRY, 1, rival) for rival in rivals for quantity in QUANTITIES
    ]


def equal_seconds_claims(
    ours: Mapping[str, Tensor], timed: Mapping[str, Mapping[str, Tensor]]
) -> list[Claim]:
    """Judge whether the entry ends below each rival after equal time, over the same networks."""
    claims = []
    for rival, theirs in timed.items():
        for quantity, meaning in QUANTITIES.items():
            margin = paired(theirs[quantity] - ours[quantity])
            claims.append(
                Claim.by(
                    f"{meaning}, at equal seconds: {ENTRY} ends below {rival}",
                    margin.low,
                    margin.high,
                    f"{float(ours[quantity].mean()):.4g}, {float(theirs[quantity].mean()):.4g}; "
                    f"margin {margin.mean:.2g} [{margin.low:.2g}, {margin.high:.2g}]",
                )
            )
    return claims
