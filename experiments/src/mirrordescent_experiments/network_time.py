"""The appendix on time: networks trained one by one through ``torch.optim``, against the clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from mirrordescent import optim
from mirrordescent.contests.training_runs import LOSS, PAPER_ADAM, TEST_ACCURACY, panels
from mirrordescent.kernels import available
from mirrordescent.methods import SMD
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.training_tasks import Make
from mirrordescent_experiments.contestants import ADAMW, MUON
from mirrordescent_experiments.intervals import paired
from mirrordescent_experiments.learned_networks import CAPPED, LMD, printed
from mirrordescent_experiments.network_training_curves import (
    ADAM_GRID,
    PAPER_SGD,
    Architecture,
    Size,
    source_for,
)
from mirrordescent_experiments.one_by_one import OneByOne, entry_claims, falling_contestants
from mirrordescent_experiments.result import Claim, Curve, Panel, Result
from mirrordescent_experiments.scales import Say, Scale

FASTEST: Any = {"fused": True}
PAIRS = (("capped LAMD", "Adam"), ("capped LAMD", "tuned Adam"), (ENTRY, ADAMW), (ENTRY, MUON))
SIZES: dict[Scale, Size] = {
    "quick": Size(2, 1, 2, 200),
    "standard": Size(8, 2, 10, 5000),
    "paper": Size(20, 20, 40, 60_000),
}


def run(architecture: Architecture, scale: Scale, directory: Path | None, say: Say) -> Result:
    """Train with learned methods, SGD, Adam, AdamW and Muon for equal time.

    Evaluation is off the clock.
    """
    size = SIZES[scale]
    source = source_for(scale, directory)
    task = OneByOne(architecture, size, source, directory)
    rate = min(ADAM_GRID, key=lambda lr: task.final_loss(_adam(lr)))
    contestants: dict[str, Make] = {
        **_learned(architecture.entry),
        f"SGD ({PAPER_SGD:g})": constant(
            lambda model: SGD(model.parameters(), PAPER_SGD, **FASTEST)
        ),
        f"Adam ({PAPER_ADAM:g})": _adam(PAPER_ADAM),
        f"tuned Adam ({rate:g})": _adam(rate),
        **dict(map(task.tuned, falling_contestants())),
    }
    settings = {
        "scale": scale,
        "data": source,
        **vars(size),
        "batch": task.batch,
        "steps": task.steps,
    }
    result = Result(f"{architecture.name}-time", f"{architecture.title}, against time", settings)
    runs = {}
    for name, make in contestants.items():
        runs[name] = task.curves(name, make)
        say(
            f"{name}: loss {float(runs[name][LOSS].values[-1].mean()):.4g} in "
            f"{runs[name][LOSS].seconds[-1]:.2f} s"
        )
    result.panels = panels(list(runs.values()), against="seconds")
    if scale != "quick":
        result.claims = [
            *_on_pace(result.panels[LOSS]),
            *at_the_same_second(result.panels),
            *entry_claims(result.panels),
        ]
    return result


def constant(make: Callable[[nn.Module], Optimizer]) -> Make:
    """Return an optimiser that no scheduler changes: its steps are constant, or its own."""
    return lambda model, steps: (make(model), None)


def _adam(lr: float) -> Make:
    return constant(lambda model: Adam(model.parameters(), lr, **FASTEST))


def _learned(entry: str) -> dict[str, Make]:
    """Return the methods of an entry as optimisers."""
    descent = cast(SMD | None, printed(f"{entry}-printed").get(LMD))
    fastest: Any = {"lr": 1.0, "nonfinite": None, **(FASTEST if available() else {})}
    made = {CAPPED: constant(lambda m: optim.AMD(m.named_parameters(), mirror=entry, **fastest))}
    if descent is not None:
        made[LMD] = constant(
            lambda m: optim.SMD(m.named_parameters(), mirror=descent.mirror, t=descent.t, **fastest)
        )
    return made


def _on_pace(loss: Panel) -> list[Claim]:
    pace = {curve.name: curve.seconds[-1] / curve.iterations[-1] for curve in loss.curves}
    measured = ", ".join(f"{name} {1000 * seconds:.2f} ms" for name, seconds in pace.items())
    known = ((LMD, "SGD"), (CAPPED, "Adam")) if LMD in loss.names else ((CAPPED, "Adam"),)
    pairs = ((loss[ours].name, loss[theirs].name) for ours, theirs in known)
    return [
        Claim(
            f"a step of {ours} takes at most 1.1 times as long as one of {theirs}",
            pace[ours] <= 1.1 * pace[theirs],
            measured,
        )
        for ours, theirs in pairs
    ]


def at_the_same_second(
    panels: dict[str, Panel], pairs: Sequence[tuple[str, str]] = PAIRS
) -> list[Claim]:
    """Compare pairs when the first of the two has taken its last step.

    Of two methods whose steps fall to 0, the slower one has not come to its end then, which counts
    against it.
    """
    claims = []
    for name, rival in pairs:
        for quantity, sign in ((LOSS, 1), (TEST_ACCURACY, -1)):
            ours = panels[quantity][name]
            theirs = panels[quantity][rival]
            moment = min(ours.seconds[-1], theirs.seconds[-1])
            found, other = (_at(curve, moment) for curve in (ours, theirs))
            margin = paired(sign * (other - found))
            claims.append(
                Claim.by(
                    f"after {moment:.2f} s, {quantity}: {name} is ahead of {theirs.name}",
                    margin.low,
                    margin.high,
                    f"{name} {float(found.mean()):.4f}, {theirs.name} {float(other.mean()):.4f}, "
                    "ahead by "
                    f"{margin.mean:+.4f} [{margin.low:+.4f}, {margin.high:+.4f}] over {len(found)} "
                    "networks",
                )
            )
    return claims


def _at(curve: Curve, moment: float) -> Tensor:
    """Return every run's value at a moment, interpolated linearly."""
    after = min(sum(second < moment for second in curve.seconds), len(curve.seconds) - 1)
    start = curve.seconds[after - 1]
    end = curve.seconds[after]
    share = min(1.0, (moment - start) / (end - start))
    return torch.lerp(curve.values[after - 1].double(), curve.values[after].double(), share)
