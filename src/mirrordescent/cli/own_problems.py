"""Solve the problems of a user's Python file: ``mirrordescent solve my_problems.py``."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mirrordescent._internal.files import write_whole
from mirrordescent.cli.problem_files import load_family, load_solver
from mirrordescent.learn import Draw
from mirrordescent.learn.families import lower_bounds
from mirrordescent.methods import FISTA, Method
from mirrordescent.problems import Problem
from mirrordescent.problems.statements import allowed_excess, in_words, require_consistent
from mirrordescent.references.certificate import primal_dual
from mirrordescent.solving import Rule, Solution, gap, relative_change, relative_gap, solve
from mirrordescent.trees import leaves

LEARNED = Path("out/zoo")
"""Folder to which ``mirrordescent learn`` writes by default."""
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class SolvedProblems:
    """The outcome of a run.

    Args:
        report: Plain data for JSON.
        rows: Table for people, with a header.
        reached: Whether every problem reached the accuracy.
        solver: Name of the solver.
        path: File with the solutions.
        proof: What the gaps rest on, in words.
    """

    report: dict[str, Any]
    rows: list[tuple[str, ...]]
    reached: bool
    solver: str
    path: Path
    proof: str


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
) -> SolvedProblems:
    """Draw problems from the family in a file, solve them, and write the solutions."""
    if not 0 < accuracy < 1:
        raise ValueError(f"--accuracy must be in (0, 1), got {accuracy}")
    if count < 1:
        raise ValueError(f"--count must be at least 1, got {count}")
    if any(abs(seed) > LARGEST_SEED for seed in seeds):
        raise ValueError(f"--seeds must be at most 2**63 - 1, got {seeds}")
    family = load_family(file)
    draw = family.draw(torch.tensor(seeds)) if seeds else family.validation(count)
    name, method = _choose_solver(solver, file.stem, draw.problem)
    lower = draw.lower
    conditions: list[str] | None = [] if lower is None else ["draw() returns lower bounds"]
    if lower is None and prove:
        say("finding lower bounds")
        lower, conditions = lower_bounds(draw, min(1e-3, accuracy / 100))
    solution = solve(
        draw.problem,
        method,
        draw.x0,
        iterations=iterations,
        stop=_stopping_rule(lower, accuracy),
        check_every=10,
        progress=progress,
    )
    if lower is not None and conditions is not None:
        start_value = draw.problem.value(draw.x0)
        require_consistent(
            draw.problem,
            lower,
            solution.best_value,
            start_value,
            conditions,
            lambda: allowed_excess(draw.problem, solution.best_x, draw.x0),
        )
    gaps = _gaps(solution, draw, lower)
    keys = seeds or tuple(range(len(gaps)))
    if len(keys) != len(gaps):
        raise ValueError(
            f"draw() in {file} must return one problem for each seed; "
            f"it returned {len(gaps)} problems for {len(keys)} seeds"
        )
    rows = _table(solution, gaps, keys, conditions)
    path = out / f"{file.stem}.safetensors"
    _write(solution, draw, lower, name, path)
    report = {
        "solver": name,
        "solutions": path,
        "proven": conditions == [] and lower is not None,
        "conditional_on": conditions or [],
        "problems": [dict(zip(rows[0], row, strict=True)) for row in rows[1:]],
    }
    reached = solution.ok if lower is None else bool((gaps <= accuracy).all())
    proof = _proof_in_words(lower, conditions)
    return SolvedProblems(report, rows, reached, name, path, proof)


def _proof_in_words(lower: Tensor | None, conditions: list[str] | None) -> str:
    """Return what the gaps rest on: nothing, a proof, a conditional proof or an estimate."""
    if lower is None:
        return "unknown, without lower bounds"
    if conditions is None:
        return "estimated: nothing could be proven for these problems"
    return f"proven {in_words(conditions)}" if conditions else "proven"


def _choose_solver(requested: str | None, name: str, problem: Problem) -> tuple[str, Method[Any]]:
    """Return a solver and its name.

    In this order: the requested solver; the solver learned for this file; PDHG if f is not smooth
    and has a saddle-point form; FISTA with restarts.
    """
    learned = LEARNED / f"{name}.safetensors"
    if requested is None and learned.is_file():
        requested = str(learned)
    if requested is not None:
        return requested, load_solver(requested)
    saddle = problem.saddle_point()
    if saddle is not None and problem.smoothness() == math.inf:
        method = primal_dual(problem, saddle)
        return type(method).__name__, method
    return "FISTA with restarts", FISTA()


def _stopping_rule(lower: Tensor | None, accuracy: float) -> Rule:
    """Stop at a relative gap if lower bounds are known, otherwise when the iterates settle."""
    if lower is None:
        return relative_change(1e-7)

    return gap(accuracy, lower)


def _gaps(solution: Solution, draw: Draw, lower: Tensor | None) -> Tensor:
    """Return the relative gaps, or NaN without lower bounds."""
    start = draw.problem.value(draw.x0)
    if lower is None:
        return torch.full_like(start, math.nan)
    return relative_gap(solution.value, lower, start)


def _table(
    solution: Solution, gaps: Tensor, keys: tuple[int, ...], conditions: list[str] | None
) -> list[tuple[str, ...]]:
    gap_column = "gap"
    if conditions is None:
        gap_column = "gap, estimated"
    rows: list[tuple[str, ...]] = [("problem", "value", gap_column, "iterations", "status")]
    for index, key in enumerate(keys):
        value = float(solution.value[index])
        gap = float(gaps[index])
        steps = int(solution.steps[index])
        status = solution.statuses[index].name.lower().replace("_", " ")
        shown_gap = "–" if math.isnan(gap) else f"{gap:.1e}"
        rows.append((str(key), f"{value:.6g}", shown_gap, str(steps), status))
    return rows


def _write(solution: Solution, draw: Draw, lower: Tensor | None, solver: str, path: Path) -> None:
    """Write the solutions, their values, and the lower bounds if known."""
    tensors: dict[str, Tensor] = {}
    if isinstance(solution.x, Tensor):
        tensors["x"] = solution.x
    else:
        tensors.update({f"x.{key}": leaf for key, leaf in solution.x.items()})
    tensors["value"] = solution.value
    if lower is not None:
        tensors["lower"] = lower.to(next(leaves(draw.x0)))
    path.parent.mkdir(parents=True, exist_ok=True)
    contiguous = {key: tensor.contiguous() for key, tensor in tensors.items()}
    write_whole(contiguous, {"solver": solver}, path)
