"""The appendix on time: inpainting against the clock."""

from __future__ import annotations

import math
from pathlib import Path

from mirrordescent.contests.image_contests import imaging_contest
from mirrordescent.learn.recipe import CONTROL
from mirrordescent_experiments.baselines import BASELINES, CLASSICAL, EARLY_CLASSICAL, mean_by
from mirrordescent_experiments.claims import by_margin, ratio
from mirrordescent_experiments.extensions import NO_MAP, rebuild
from mirrordescent_experiments.imaging_experiments import TASKS
from mirrordescent_experiments.intervals import paired
from mirrordescent_experiments.result import Claim, Curve, Panel, Result, Table
from mirrordescent_experiments.scales import Say, Scale

SIZES: dict[Scale, tuple[int, int]] = {"quick": (1, 30), "standard": (8, 2000), "paper": (16, 2000)}
MORE = (
    5  # iterations without a network are cheaper, so those methods get more of them, by this factor
)
LEARNED = ("LAMD", "LSMD", "one-network LSMD", "one-network LAMD", "dual-pair LSMD", "stencil LAMD")
LEVELS = (100.0, 10.0, 1.0, 0.1)


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Run learned and classical methods from y, and plot their gaps against seconds."""
    task = TASKS["inpaint"]
    (count, iterations) = SIZES[scale]
    side = task.sizes[scale].side
    result = Result(
        "inpaint-time",
        "Inpainting against time",
        {"scale": scale, "problems": count, "iterations": iterations},
    )
    problem, training = (task.make(count, side, part, directory) for part in (False, True))
    contest, longer, rehearsal = (
        imaging_contest(p, False, budget)
        for p, budget in (
            (problem, iterations),
            (problem, MORE * iterations),
            (training, iterations),
        )
    )
    pair = task.learned()
    conjugate = task.learned("conjugate")
    curves = [
        contest.run("LAMD", rebuild(pair, "LAMD", "reciprocal")),
        longer.run(f"LAMD{NO_MAP}", rebuild(task.control(""), "LAMD", "reciprocal")),
        contest.run("LSMD", rebuild(pair, "LSMD", "reciprocal")),
        contest.run("one-network LSMD", rebuild(conjugate, "LSMD", "reciprocal")),
        contest.run("one-network LAMD", rebuild(conjugate, "LAMD", "reciprocal")),
        contest.run("dual-pair LSMD", rebuild(task.learned("dual-pair"), "LSMD", "reciprocal")),
        longer.run(
            f"dual-pair LSMD{NO_MAP}", rebuild(task.control("dual-pair "), "LSMD", "reciprocal")
        ),
        longer.run("stencil LAMD", task.learned("stencil")),
        longer.run(f"stencil LAMD{NO_MAP}", task.learned(f"stencil{CONTROL}")),
    ]
    say("learned methods done")
    for tunable in BASELINES:
        best = tunable.settings.index(rehearsal.tune(tunable, min(100, iterations)))
        steps = tunable.settings[max(0, best - 1) : best + 2]
        curves += [longer.run(f"{tunable.name} {step:g}", tunable.make(step)) for step in steps]
    curves.append(longer.run("LPD", task.learned("lpd")))
    curves += [
        longer.run_tuned(CLASSICAL, rehearsal),
        longer.run_tuned(EARLY_CLASSICAL, rehearsal, at=10),
    ]
    result.panels["gap against seconds"] = Panel(curves, against="seconds")
    result.tables["Seconds until the mean gap is below a level"] = Table(
        ("method", *(f"{level:g}" for level in LEVELS), "ms per iteration"),
        [_times(curve) for curve in curves],
    )
    if scale != "quick":
        result.claims = _claims(result.panels["gap against seconds"])
    return result


def _times(curve: Curve) -> list[str]:
    gaps = curve.values.mean(1).tolist()
    reached = [
        next((s for s, gap in zip(curve.seconds, gaps, strict=True) if gap <= level), None)
        for level in LEVELS
    ]
    pace = 1000 * curve.seconds[-1] / curve.iterations[-1]
    return [
        curve.name,
        *("–" if second is None else f"{second:.2f}" for second in reached),
        f"{pace:.2f}",
    ]


def _claims(panel: Panel) -> list[Claim]:
    """Judge the ends of runs, and the gaps after the time of LAMD's first ten iterations."""
    ours = panel["LAMD"]
    baselines = [c for c in panel.curves if c.name.split()[0] in {t.name for t in BASELINES}]
    ends = {curve.name: float(curve.values[-1].mean()) for curve in (ours, *baselines)}
    falls = {
        name: paired(
            ratio(*(panel[name].values[panel[name].iterations.index(k)] for k in (1000, 2000)))
        )
        for name in ("LAMD", "one-network LAMD")
    }
    moment = ours.seconds[ours.iterations.index(10)]
    then = {curve.name: mean_by(curve, moment) for curve in panel.curves}
    return [
        by_margin(
            "LAMD ends below where GD, Nesterov and Adam end, whatever their step size",
            ours.values[-1].double(),
            [curve.values[-1].double() for curve in baselines],
            ", ".join(f"{name} {end:.3g}" for name, end in ends.items()),
        ),
        Claim.by(
            (
                "LAMD is still falling at the end: its gap at least halves over the last half "
                "of the run"
            ),
            falls["LAMD"].low - math.log10(2),
            falls["LAMD"].high - math.log10(2),
            "; ".join(f"{name} falls by {fall} decades" for name, fall in falls.items()),
        ),
        Claim(
            (
                f"after {moment:.2f} s, when LAMD has taken 10 steps, a learned mirror method "
                "is ahead of PDHG"
            ),
            min(then[name] for name in LEARNED)
            < min(gap for name, gap in then.items() if "PDHG" in name),
            ", ".join(f"{name} {gap:.3g}" for name, gap in then.items()),
        ),
    ]
