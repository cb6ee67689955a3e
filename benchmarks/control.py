"""Measure model-predictive control in batches, against OSQP and DAQP.

256 control problems of a quadcopter (`examples/quadcopter.py`: 12 states, 4 inputs, horizon 10)
are written in CVXPY and solved from present states to controls. The error is that of the first
control, the largest of all problems; exact controls come from polished active sets in double
precision, whose optimality conditions were verified. Every solver gets its cheapest setting that
reaches the accuracy on 256 other states. Times are microseconds per problem by the wall clock and
in CPU time, medians of rounds in turn, and start with the states. OSQP is set up once on the sparse
problem, and keeps its decomposition; only bounds are updated, and its warm starts are used. DAQP
solves the dense problem without equalities. The ratio is that of OSQP's wall time, with its
interval of 95 %. The last columns are for one problem at a time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from examples.quadcopter import GOAL, HORIZON, HOVER, WEIGHTS, Quadcopter, dynamics, present_state
from torch import Tensor

from benchmarks.measure import Row, about, all_printed_by, quick, seconds, table, verdict
from mirrordescent import ADMM
from mirrordescent.execution import steps_for
from mirrordescent.learn import Descent, Objective, Pooled, Settings, Validation, learn
from mirrordescent.methods import Method
from mirrordescent.methods.program_starts import fitted_start
from mirrordescent.oracles import Default
from mirrordescent.problems import QP
from mirrordescent.racing import speedup, time_in_turn
from mirrordescent.schedules import PowerLaws

BATCH = 256
LEVELS = {1e-3: 10.0, 1e-6: 3.0}
"""Errors of the first control, and how many times faster than OSQP is wanted."""

TOLERANCES = [10.0 ** (-k / 4) for k in range(8, 41)]
STEPS = (4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 60, 80)
PENALTIES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)
MARGIN = 0.7
"""Share of the accuracy that settings reach on other states."""

PREDICTIONS = 20
"""Largest number of predictions of active sets."""

ROUNDS = 31
META_STEPS = 120
LEARNED_HORIZON = 16

Solve = Callable[[Tensor], Tensor]
"""A function from present states (batch, 12) to the first controls (batch, 4)."""


def states(seed: int) -> Tensor:
    """Return present states."""
    count = 8 if quick() else BATCH
    generator = torch.Generator().manual_seed(seed)
    drawn = [present_state(generator)["present"] for _ in range(count)]
    return torch.stack(drawn).double()


@cache
def family() -> Any:
    """Return the family of control problems; its class of programs is prepared once."""
    return Quadcopter()


def exact_controls(present: Tensor) -> Tensor:
    """Return controls whose optimality conditions are verified in double precision."""
    program = family().program(present=present)
    method = ADMM(0.5, polish=10, rounds=10)
    state = take_steps(method, program, 2000)
    assert bool(state.exact.all()), "not all control problems were solved exactly"
    return first_controls(state.x)


def take_steps(method: ADMM, program: QP, steps: int) -> Any:
    """Return the state of a method after some steps."""
    run = steps_for(method, program, Default())
    count = 1 if program.batch is None else program.batch
    return run(method.init(program.start(count), program), steps)


def first_controls(x: Tensor) -> Tensor:
    """Return the controls of the first interval."""
    return family().unpack(x)["u"][:, 0]


@torch.no_grad()
def by_admm(method: ADMM, steps: int, present: Tensor) -> Tensor:
    """Solve all problems at once."""
    return first_controls(take_steps(method, family().program(present=present), steps).x)


def budget(steps: int, polished: bool) -> int:
    """Return the steps to take; a run with active sets ends when all problems are solved."""
    return PREDICTIONS * steps if polished else steps


def plain(polished: bool) -> list[Solve]:
    """Return ADMM with one penalty for all constraints."""
    chosen = []
    for steps in STEPS:
        for rho in PENALTIES:
            method = ADMM(rho, polish=steps if polished else 0, precision="single")
            chosen.append(partial(by_admm, method, budget(steps, polished)))
    return chosen


@cache
def learned_parts() -> tuple[Method[Any], float]:
    """Return ADMM with a penalty for every constraint, schedules and a start, all learned."""
    pool = Pooled(family(), 16 if quick() else BATCH, 1e-6, 10_000)
    reduced = pool.unbounded().problem.reduced
    counts = [1, 2, 4, 8, LEARNED_HORIZON]
    rho = min(PENALTIES, key=partial(error_of_penalty, states(3)))
    method = ADMM(
        torch.full((reduced.rows,), rho),
        PowerLaws(counts, [1.6] * len(counts), bound=2.0),
        polish=0,
        start=fitted_start(reduced),
    ).double()
    settings = Settings(
        meta_steps=3 if quick() else META_STEPS,
        batch=8 if quick() else 64,
        horizon=LEARNED_HORIZON,
        objective=Objective("log_gap", floor=1e-9),
        step_bounds=None,
        optimiser=Descent(learning_rate=2e-2),
        validation=Validation(every=20, batch=8 if quick() else 64, horizons=(0.5, 1.0)),
    )
    learn(pool, method, settings, progress=False)
    return method, rho


def error_of_penalty(present: Tensor, rho: float) -> float:
    """Return the mean error after some steps."""
    error = by_admm(ADMM(rho, polish=0), LEARNED_HORIZON, present) - exact_controls(present)
    return float(error.abs().mean())


def learned(polished: bool) -> list[Solve]:
    """Return the learned method with and without active sets."""
    trained, _ = learned_parts()
    assert isinstance(trained, ADMM)
    chosen = []
    for steps in (1, 2, 3, *STEPS):
        method = ADMM(
            trained.rho.detach(),
            trained.relaxation,
            polish=steps if polished else 0,
            start=trained.start,
            precision="single",
        ).requires_grad_(False)
        chosen.append(partial(by_admm, method, budget(steps, polished)))
    return chosen


def osqp_settings() -> list[Solve]:
    """Return OSQP with all tolerances."""
    return [Osqp(tolerance) for tolerance in TOLERANCES]


class Osqp:
    """OSQP on the sparse problem in its own form, set up once."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.solver: Any = None

    def __call__(self, present: Tensor) -> Tensor:
        if self.solver is None:
            self._set_up()
        solutions = []
        for row in present.numpy():
            self.lower[self.rows] = row
            self.upper[self.rows] = row
            self.solver.update(l=self.lower, u=self.upper)
            solutions.append(self.solver.solve(raise_error=False).x[self.columns])
        return torch.from_numpy(np.stack(solutions))

    def _set_up(self) -> None:
        import osqp
        import scipy.sparse as sp

        F, G = dynamics()
        N = HORIZON
        P = sp.block_diag(
            [sp.kron(sp.eye(N + 1), np.diag(WEIGHTS)), 0.1 * sp.eye(4 * N)], format="csc"
        )
        q = np.concatenate([np.tile(-WEIGHTS * GOAL, N + 1), np.zeros(4 * N)])
        states = sp.eye(12 * (N + 1)) - sp.kron(sp.eye(N + 1, k=-1), F)
        controls = sp.kron(sp.vstack([sp.csc_matrix((1, N)), -sp.eye(N)]), G)
        limited = [12 * k + i for k in range(1, N + 1) for i in (0, 1, 5)]
        limited += range(12 * (N + 1), 12 * (N + 1) + 4 * N)
        everything = sp.eye(12 * (N + 1) + 4 * N, format="csr")
        A = sp.vstack([sp.hstack([states, controls]), everything[limited]], format="csc")
        zeros = np.zeros(12 * (N + 1))
        thrust = np.ones(4 * N)
        angle = np.pi / 6
        low = [zeros, np.tile([-angle, -angle, -1], N), (9.6 - HOVER) * thrust]
        high = [zeros, np.tile([angle, angle, np.inf], N), (13 - HOVER) * thrust]
        self.lower = np.concatenate(low)
        self.upper = np.concatenate(high)
        self.rows = slice(0, 12)
        self.columns = slice(12 * (N + 1), 12 * (N + 1) + 4)
        self.solver = osqp.OSQP()
        self.solver.setup(
            P,
            q,
            A,
            self.lower,
            self.upper,
            verbose=False,
            eps_abs=self.tolerance,
            eps_rel=self.tolerance,
            max_iter=50_000,
            check_termination=5,
        )


def by_daqp(present: Tensor) -> Tensor:
    """Solve the dense problems without equalities one by one."""
    import daqp

    reduced = family().program(present=present).reduced
    matrices = reduced.matrices
    H = np.ascontiguousarray(matrices.H.numpy())
    C = np.ascontiguousarray(matrices.C.numpy())
    g = np.ascontiguousarray(reduced.g.numpy())
    low = np.ascontiguousarray(reduced.low.clamp(min=-1e30).numpy())
    high = np.ascontiguousarray(reduced.high.clamp(max=1e30).numpy())
    sense = np.zeros(len(C), np.int32)
    solutions = []
    for i in range(len(g)):
        v, _, _, _ = daqp.solve(H, g[i], C, high[i], low[i], sense)
        solutions.append(v)
    moved = torch.from_numpy(np.stack(solutions)) @ matrices.N.mT
    return first_controls(reduced.start + moved)


CONTESTANTS: dict[str, Callable[[], Sequence[Solve]]] = {
    "OSQP": osqp_settings,
    "DAQP": lambda: [by_daqp],
    "ADMM": lambda: plain(polished=False),
    "ADMM, active sets": lambda: plain(polished=True),
    "learned ADMM": lambda: learned(polished=False),
    "learned ADMM, active sets": lambda: learned(polished=True),
}


def cheapest(settings: Sequence[Solve], present: Tensor, exact: Tensor, level: float) -> Solve:
    """Return the fastest setting that reaches an accuracy; the most accurate one if none does."""
    errors = [float((each(present) - exact).abs().max()) for each in settings]
    able = [i for i, error in enumerate(errors) if error <= level]
    if not able:
        return settings[errors.index(min(errors))]
    times = {i: min(seconds(partial(settings[i], present)) for _ in range(3)) for i in able}
    return settings[min(times, key=times.__getitem__)]


@torch.no_grad()
def print_results() -> None:
    """Print the results of every solver at every level, in the order of ``FIGURES``."""
    torch.set_num_threads(1)
    tuning = states(1)
    unseen = states(2)
    tuning_exact = exact_controls(tuning)
    unseen_exact = exact_controls(unseen)
    with torch.enable_grad():
        entrants = {name: list(make()) for name, make in CONTESTANTS.items()}
    for level in LEVELS:
        runs = {}
        for name, settings in entrants.items():
            runs[name] = cheapest(settings, tuning, tuning_exact, MARGIN * level)
        rounds = 2 if quick() else ROUNDS
        batch = time_in_turn({name: partial(run, unseen) for name, run in runs.items()}, rounds)
        alone = time_in_turn({name: partial(run, unseen[:1]) for name, run in runs.items()}, rounds)
        for name, run in runs.items():
            ratio = speedup(batch["OSQP"], batch[name])
            print(
                float((run(unseen) - unseen_exact).abs().max()),
                1e6 * statistics.median(batch[name].wall) / len(unseen),
                1e6 * statistics.median(batch[name].cpu) / len(unseen),
                ratio.median,
                ratio.low,
                ratio.high,
                1e6 * statistics.median(alone[name].wall),
            )


FIGURES = 7
"""Error, wall and CPU time, ratio with its interval, and time for one problem."""


def rows() -> Iterator[Row]:
    """Yield the rows of the table."""
    printed = iter(all_printed_by("benchmarks.control", keep_freed=True))
    for level, wanted in LEVELS.items():
        for name in CONTESTANTS:
            error, wall, cpu, ratio, low, high, alone = islice(printed, FIGURES)
            ours = "ADMM" in name
            met = ratio >= wanted and error <= level
            yield (
                name,
                f"{level:g}",
                f"{error:.1e}",
                f"{wall:.3g}",
                f"{cpu:.3g}",
                f"{ratio:.3g} ({low:.3g} to {high:.3g})",
                f"≥ {wanted:g}" if ours else "",
                verdict(met) if ours else "",
                f"{alone:.3g}",
            )


def main() -> str:
    """Measure all solvers."""
    header = (
        "solver",
        "accuracy",
        "largest error",
        "µs",
        "µs of CPU",
        "times OSQP",
        "target",
        "",
        "µs alone",
    )
    return f"{about(__doc__)}\n{table(header, rows())}"


if __name__ == "__main__":
    print_results()
