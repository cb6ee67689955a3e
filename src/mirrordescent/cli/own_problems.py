"""Problems of a user's own, solved: what ``mirrordescent solve my_problems.py`` does."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrordescent._internal.files import write_whole
from mirrordescent.cli.problem_files import load_family, load_solver
from mirrordescent.learn.families import reference_of
from mirrordescent.methods import FISTA, Method
from mirrordescent.problems import Problem
from mirrordescent.references.certificate import primal_dual
from mirrordescent.solving import Snapshot, Rule, relative_change, relative_gap, solve
from mirrordescent.trees import leaves

LEARNED = Path("out/zoo")  # where `mirrordescent learn` writes


class Solved(NamedTuple):
    """What is said about a run, whether all problems got to the accuracy, by which solver, and
    where solutions are.
    """

    report: dict[str, Any]
    rows: list[tuple[str, ...]]
    reached: bool
    solver: str
    path: Path


def solve_own(
    file: Path,
    solver: str | None,
    seeds: tuple[int, ...],
    count: int,
    accuracy: float,
    iterations: int,
    prove: bool,
    out: Path,
    say: Callable[[str], object],
    progress: bool | None,
) -> Solved:
    """Draw problems of a file, solve them, and keep the solutions."""
    if not 0 < accuracy < 1 or count < 1:
        raise ValueError(
            f"accuracy must be in (0, 1) and count at least 1, got {accuracy} and {count}"
        )
    family = load_family(file)
    draw = family.draw(torch.tensor(seeds)) if seeds else family.validation(count)
    problem = draw.problem
    x0 = draw.x0
    lower = draw.lower
    proven = True
    name, method = _solver(solver, file.stem, problem)
    if lower is None and prove:
        say("finding lower bounds")
        lower, proven = reference_of(draw, min(1e-3, accuracy / 100))
    start = problem.value(x0)
    rule = (
        relative_change(1e-7) if lower is None else Rule(lambda look: _gap(look, lower) <= accuracy)
    )
    found = solve(
        problem, method, x0, iterations=iterations, stop=rule, check_every=10, progress=progress
    )
    gaps = (
        torch.full_like(start, math.nan)
        if lower is None
        else relative_gap(found.value, lower, start)
    )
    keys = seeds or tuple(range(len(start)))
    rows: list[tuple[str, ...]] = [
        ("problem", "value", "gap" if proven else "gap, estimated", "iterations", "status")
    ]
    for key, value, gap, steps, status in zip(
        keys, found.value.tolist(), gaps.tolist(), found.steps.tolist(), found.statuses, strict=True
    ):
        shown = "–" if math.isnan(gap) else f"{gap:.1e}"
        rows.append(
            (str(key), f"{value:.6g}", shown, str(steps), status.name.lower().replace("_", " "))
        )
    x = (
        {"x": found.x}
        if isinstance(found.x, Tensor)
        else {f"x.{key}": leaf for key, leaf in found.x.items()}
    )
    tensors = {**x, "value": found.value} | (
        {} if lower is None else {"lower": lower.to(next(leaves(x0)))}
    )
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{file.stem}.safetensors"
    write_whole(
        {key: tensor.contiguous() for key, tensor in tensors.items()}, {"solver": name}, path
    )
    records = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    report = {
        "solver": name,
        "solutions": path,
        "proven": proven and lower is not None,
        "problems": records,
    }
    reached = found.ok if lower is None else bool((gaps <= accuracy).all())
    return Solved(report, rows, reached, name, path)


def _gap(look: Snapshot, lower: Tensor) -> Tensor:
    return relative_gap(look.value, lower, look.start_value)


def _solver(asked: str | None, name: str, problem: Problem) -> tuple[str, Method[Any]]:
    """Return the solver that was asked for, or the learned one, or a classical one that needs no
    tuning.
    """
    learned = LEARNED / f"{name}.safetensors"
    if asked is None and learned.is_file():
        asked = str(learned)
    if asked is not None:
        return asked, load_solver(asked)
    saddle = problem.saddle_point()
    if saddle is not None and problem.smoothness() == math.inf:
        method = primal_dual(problem, saddle)
        return type(method).__name__, method
    return "FISTA with restarts", FISTA()
