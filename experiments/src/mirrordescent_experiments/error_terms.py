"""The error terms of a pair of networks along its runs: section 5.1 and the remark on Theorem 1.

The paper explains two things by them without showing them: that LAMD falls faster than Theorem 1
promises, because its error term ⟨∇ψ(z̃) − ∇ψ(ẑ), z̃ − x*⟩ decays; and that storing the dual makes a
far smaller error than passing through both networks in every step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from mirrordescent import zoo
from mirrordescent.methods import AMD, SMD
from mirrordescent.mirrors import MirrorMap
from mirrordescent.references import certify
from mirrordescent.theory import observe
from mirrordescent.theory.geometry import NewtonInverse
from mirrordescent.theory.inverse_consistency import UpdateErrors
from mirrordescent_experiments.imaging_experiments import TASKS
from mirrordescent_experiments.intervals import paired
from mirrordescent_experiments.result import Claim, Curve, Panel, Result
from mirrordescent_experiments.scales import Say, Scale

SIZES: dict[Scale, tuple[int, int, int]] = {
    "quick": (2, 24, 20),
    "standard": (8, 48, 500),
    "paper": (16, 96, 2000),
}
FAR = 10.0  # "much lower", in numbers
ERROR = "error term"
UPDATES = "errors of updates"


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Follow LAMD, its primal-stored form and LSMD, with the pair of each imaging task."""
    count, side, iterations = SIZES[scale]
    settings = {"scale": scale, "problems": count, "side": side, "iterations": iterations}
    result = Result("error-terms", "Error terms of pairs of networks", settings)
    for name, task in TASKS.items():
        problem = task.make(count, side, False, directory).double()
        learned = cast(Any, zoo.load(f"{task.entry}-pair")).double()
        mirror = cast(MirrorMap, learned.mirror)
        t = learned.t
        u = certify(problem).x
        x0 = problem.start()
        runs = {
            "LAMD": (AMD(mirror, t), NewtonInverse(mirror)),
            "Algorithm 1": (AMD(mirror, t, storage="primal"), None),
        }
        curves = []
        for label, (method, geometry) in runs.items():
            record = observe(
                problem, method, x0, minimiser=u, iterations=iterations, geometry=geometry
            ).record
            curves.append(_curve(label, list(range(1, iterations + 1)), record["error"].abs()))
        result.panels[f"{name}: {ERROR}"] = Panel(curves, "|⟨∇ψ(z̃) − ∇ψ(ẑ), z̃ − x*⟩|")
        updates = UpdateErrors(every=max(1, iterations // 40))
        observe(
            problem, SMD(mirror, t), x0, minimiser=u, iterations=iterations, callbacks=[updates]
        )
        both = {"dual update": "dual_update", "primal update": "primal_update"}
        at = [k + 1 for k in updates.iterations]
        result.panels[f"{name}: {UPDATES}"] = Panel(
            [_curve(label, at, updates.series[key]) for label, key in both.items()],
            "‖∇M(x⁺) − ∇M(x̂⁺)‖",
        )
        say(f"{name} done")
    if scale != "quick":
        result.claims = [claim for task in TASKS for claim in claims(task, result.panels)]
    return result


def _curve(name: str, iterations: list[int], values: Tensor) -> Curve:
    return Curve(name, iterations, [0.0] * len(iterations), values.double())


def claims(task: str, panels: dict[str, Panel]) -> list[Claim]:
    """Judge whether LAMD's error term decays, and whether dual updates make far smaller errors."""
    return [
        *(decays(task, panels[f"{task}: {ERROR}"][name]) for name in ("LAMD", "Algorithm 1")),
        far_below(task, panels[f"{task}: {UPDATES}"]),
    ]


def decays(task: str, curve: Curve) -> Claim:
    """Compare the largest error of the first tenth of a run with that of the last half."""
    count = len(curve.iterations)
    early = curve.values[: max(1, count // 10)].amax(0)
    late = curve.values[count // 2 :].amax(0)
    fall = paired((early / late.clamp(min=1e-300)).log10())
    return Claim.by(
        f"{task}: the error term of {curve.name} decays: its largest over the last half of the run "
        "is below a tenth of "
        "its largest over the first tenth",
        fall.low - 1,
        fall.high - 1,
        f"{float(early.mean()):.3g} early, {float(late.mean()):.3g} late; decades {fall}",
    )


def far_below(task: str, panel: Panel) -> Claim:
    """Compare the last errors of both kinds of update."""
    dual, primal = (panel[name].values[-1] for name in ("dual update", "primal update"))
    ratio = paired((primal / dual).log10())
    target = float(torch.tensor(FAR).log10())
    return Claim.by(
        (
            f"{task}: the error of a dual update is below 1/{FAR:g} of that of a primal one, "
            "at the end of LSMD's run"
        ),
        ratio.low - target,
        ratio.high - target,
        f"{float(dual.mean()):.3g} against {float(primal.mean()):.3g}; decades {ratio}",
    )
