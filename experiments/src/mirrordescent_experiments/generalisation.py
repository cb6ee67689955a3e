"""Inpainting maps on other sizes, damages, blurs and photographs than those of learning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mirrordescent.contests.contest import Contest
from mirrordescent.contests.image_contests import clean_tiles, damage, imaging_contest
from mirrordescent.methods import Method
from mirrordescent.problems.operators import Blur, gaussian_kernel
from mirrordescent.racing import TunableSolver
from mirrordescent_experiments.baselines import ADAM, CLASSICAL, WIDE_NESTEROV
from mirrordescent_experiments.extensions import rebuild
from mirrordescent_experiments.imaging_experiments import TASKS
from mirrordescent_experiments.result import Claim, Result, Table
from mirrordescent_experiments.scales import Say, Scale

EARLY = 10
LATE = 100


@dataclass(frozen=True)
class Condition:
    """Differences from the training problems: 32×32 crops of BSDS500, 20 % missing, no blur."""

    name: str
    source: str = "bsds500"
    side: int = 96
    missing: float = 0.2
    blur: float | None = None

    def contest(self, count: int, training: bool, fill: bool, directory: Path | None) -> Contest:
        """Make problems of this kind."""
        clean = clean_tiles(count, self.side, training, directory, self.source)
        operator = None if self.blur is None else Blur(gaussian_kernel(self.blur))
        problem = damage(clean, torch.Generator().manual_seed(8), self.missing, operator=operator)
        return imaging_contest(problem, fill, LATE)


CONDITIONS = (
    Condition("BSDS, 96², 20 % missing"),
    Condition("48²", side=48),
    Condition("192²", side=192),
    Condition("10 % missing", missing=0.1),
    Condition("40 % missing", missing=0.4),
    Condition("blurred by σ = 1", blur=1.0),
    Condition("STL-10", source="stl10"),
)
QUICK = (Condition("24²", side=24), Condition("40 % missing", side=24, missing=0.4))
COUNTS: dict[Scale, int] = {"quick": 1, "standard": 8, "paper": 32}


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Tabulate mean relative gaps after 10 and 100 iterations for every condition."""
    count = COUNTS[scale]
    result = Result(
        "generalisation",
        "Inpainting maps beyond their training",
        {"scale": scale, "problems": count},
    )
    for start, fill in (("y", False), ("y filled", True)):
        rows = []
        for condition in QUICK if scale == "quick" else CONDITIONS:
            contest, rehearsal = (
                condition.contest(count, part, fill, directory) for part in (False, True)
            )
            first = float((contest.problem.value(contest.x0).double() - contest.lower).mean())
            shares = _shares(contest, rehearsal, first)
            rows.append(
                [condition.name, f"{first:.0f}", *(f"{share:.2g}" for share in shares.values())]
            )
            if scale != "quick":
                result.claims += _claims(f"from {start}, {condition.name}", shares)
            say(f"from {start}, {condition.name} done")
        columns = ("condition", "first gap", *shares)
        result.tables[f"Mean gap as a share of the first, from {start}"] = Table(columns, rows)
    return result


def _shares(contest: Contest, rehearsal: Contest, first: float) -> dict[str, float]:
    """Return the mean gap over the first one for every method: at k = 10, then at k = 100."""
    pair = TASKS["inpaint"].learned()
    conjugate = TASKS["inpaint"].learned("conjugate")
    learned: dict[str, tuple[int, Method[Any]]] = {
        "LMD": (EARLY, rebuild(pair, "LMD", "reciprocal")),
        "one-network LSMD": (EARLY, rebuild(conjugate, "LSMD", "reciprocal")),
        "LAMD": (LATE, rebuild(pair, "LAMD", "reciprocal")),
        "one-network LAMD": (LATE, rebuild(conjugate, "LAMD", "reciprocal")),
    }
    shares = {}
    for at in (EARLY, LATE):
        rivals = {t.name: (at, _tuned(t, rehearsal, at)) for t in (ADAM, WIDE_NESTEROV, CLASSICAL)}
        for name, (when, method) in (learned | rivals).items():
            if when == at:
                solution = contest.solve(method, iterations=at)
                gap = float((solution.value.double() - contest.lower).mean())
                shares[f"{name} at {at}"] = gap / first if solution.ok else torch.inf
    return shares


def _tuned(tunable: TunableSolver, rehearsal: Contest, at: int) -> Method[Any]:
    return tunable.make(rehearsal.tune(tunable, at))


def _claims(where: str, shares: dict[str, float]) -> list[Claim]:
    claims = []
    for ours, at in (("one-network LSMD", EARLY), ("LAMD", LATE), ("one-network LAMD", LATE)):
        for rivals in (("wide Nesterov", "Adam"), ("PDHG",)):
            gaps = {name: shares[f"{name} at {at}"] for name in (ours, *rivals)}
            claims.append(
                Claim(
                    f"{where}: at k = {at}, {ours} is below {', '.join(rivals)}",
                    gaps[ours] < min(gaps[name] for name in rivals),
                    ", ".join(f"{name} {gap:.2g}" for name, gap in gaps.items()),
                )
            )
    return claims
