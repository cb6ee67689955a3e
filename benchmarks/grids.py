"""Signals and volumes against other packages, in processor time.

Volumes: total-variation denoising to a proven relative gap of 1e-3 against Chambolle's method of
scikit-image until its objective is as small. Series: fused lasso and trend filtering of many series
against OSQP in a loop. Runs are taken in turn with one thread, and the medians are compared. The
peak memory of the volume is that of a process of its own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np
import torch

import mirrordescent as md
from benchmarks.measure import about, peak_megabytes, quick, table, threads

GAP = 1e-3
TURNS = 3
WEIGHT = 0.2


def volume(side: int) -> torch.Tensor:
    """Return a noisy ball with a cube in it, (1, 1, side, side, side)."""
    line = torch.linspace(-1, 1, side)
    squares = line.square()
    inside = squares[:, None, None] + squares[:, None] + squares < 0.5
    y = 0.6 * inside.float()
    cube = line.abs() < 0.4
    y += 0.3 * (cube[:, None, None] & cube[:, None] & cube)
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    return (y + 0.1 * noise)[None, None]


def denoise_volume(y: torch.Tensor) -> md.Solution:
    """Solve isotropic total variation to the gap."""
    problem = md.GridTV(y, WEIGHT, isotropic=True)
    method = md.PDHG(problem.ratio)
    return md.solve(
        problem, method, iterations=1000, check_every=10, stop=md.gap(GAP), progress=False
    )


def chambolle_iterations(y: torch.Tensor, value: float, most: int = 400) -> int:
    """Return the iterations after which scikit-image's method has at most this value."""
    problem = md.GridTV(y, WEIGHT, isotropic=True)
    count = 10
    while count < most:
        found = _chambolle(y, count)
        if float(problem.value(torch.from_numpy(found)[None, None])) <= value:
            return count
        count = round(1.25 * count)
    return most


def _chambolle(y: torch.Tensor, iterations: int) -> Any:
    from skimage.restoration import denoise_tv_chambolle

    # It minimises ‖x − y‖²/(2 weight) + TV.
    return denoise_tv_chambolle(y[0, 0].numpy(), weight=WEIGHT / 2, eps=0, max_num_iter=iterations)


def series(count: int, length: int) -> torch.Tensor:
    """Return noisy series with jumps, (count, 1, length)."""
    generator = torch.Generator().manual_seed(0)
    jumps = torch.rand(count, 1, length, generator=generator) < 0.01
    sizes = torch.randn(count, 1, length, generator=generator)
    noise = torch.randn(count, 1, length, generator=generator)
    return (jumps * sizes).cumsum(-1) + 0.2 * noise


def osqp_loop(y: torch.Tensor, order: int, weight: float, tolerance: float) -> Callable[[], Any]:
    """Return a function that solves every series by OSQP, with one decomposition for all.

    The problem is min ½‖x − y‖² + (weight/2) Σt over −t ≤ Dx ≤ t.
    """
    import osqp
    import scipy.sparse as sp

    rows = y[:, 0].double().numpy()
    n = rows.shape[1]
    D = sp.csc_matrix(np.diff(np.eye(n), n=order, axis=0))
    m = n - order
    P = sp.block_diag([sp.eye(n), sp.csc_matrix((m, m))], format="csc")
    A = sp.bmat([[D, -sp.eye(m)], [D, sp.eye(m)]], format="csc")
    lower = np.concatenate([np.full(m, -np.inf), np.zeros(m)])
    upper = np.concatenate([np.zeros(m), np.full(m, np.inf)])

    def run() -> Any:
        solver = osqp.OSQP()
        start = np.concatenate([-rows[0], np.full(m, weight / 2)])
        solver.setup(
            P,
            start,
            A,
            lower,
            upper,
            verbose=False,
            eps_abs=tolerance,
            eps_rel=tolerance,
            max_iter=20_000,
        )
        found = []
        for row in rows:
            solver.update(q=np.concatenate([-row, np.full(m, weight / 2)]))
            found.append(solver.solve(raise_error=False).x[:n])
        return torch.from_numpy(np.stack(found))[:, None]

    return run


def in_turn(runs: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    """Return the processor seconds of every run, taken in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            began = process_time()
            run()
            seconds[name].append(process_time() - began)
    return seconds


def compare_volumes(side: int, turns: int) -> list[str]:
    """Return a row of the table of volumes."""
    y = volume(side)
    solution = denoise_volume(y)
    count = chambolle_iterations(y, float(solution.value))
    seconds = in_turn(
        {"ours": lambda: denoise_volume(y), "theirs": lambda: _chambolle(y, count)}, turns
    )
    command = [sys.executable, "-m", "benchmarks.grids", "--memory", str(side)]
    memory = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return [
        f"{side}³",
        str(solution.statuses[0]),
        _median(seconds["ours"]),
        f"{_median(seconds['theirs'])} ({count} iterations)",
        f"{statistics.median(seconds['theirs']) / statistics.median(seconds['ours']):.1f}",
        f"{memory:.2f} GB",
    ]


def compare_series(count: int, length: int, turns: int) -> list[list[str]]:
    """Return the rows of the table of series."""
    y = series(count, length)
    few = y[: max(1, count // 20)]
    rows = []
    for name, order, weight, problem, method in (
        ("fused lasso", 1, 1.0, md.GridTV, md.methods.TautString()),
        ("trend filtering", 2, 20.0, md.TrendFiltering, md.methods.TrendInteriorPoint()),
    ):

        def ours(problem: Any = problem, weight: float = weight, method: Any = method) -> Any:
            return md.solve(
                problem(y, weight), method, iterations=1, stop=md.gap(GAP), progress=False
            )

        solution = ours()
        loop, gap = _osqp_to_gap(problem(few, weight), few, order, weight)
        seconds = in_turn({"ours": ours, "theirs": loop}, turns)
        scale = count / len(few)
        theirs = [scale * each for each in seconds["theirs"]]
        converged = sum(status is md.Status.CONVERGED for status in solution.statuses)
        ratio = statistics.median(theirs) / statistics.median(seconds["ours"])
        rows.append(
            [
                f"{name}, {count} × {length}",
                f"{converged} of {count}",
                _median(seconds["ours"]),
                f"{_median(theirs)} (gap {gap:.1g}, from {len(few)} series)",
                f"{ratio:.1f}",
            ]
        )
    return rows


def _osqp_to_gap(
    problem: Any, y: torch.Tensor, order: int, weight: float
) -> tuple[Callable[[], Any], float]:
    """Return OSQP at the loosest tolerance with a largest relative gap of at most ``GAP``."""
    exact = md.methods.TautString() if order == 1 else md.methods.TrendInteriorPoint()
    solution = md.solve(problem, exact, iterations=1, progress=False)
    start = problem.value(y)
    assert solution.lower is not None
    for tolerance in (1e-2, 1e-3, 1e-4, 1e-5):
        loop = osqp_loop(y, order, weight, tolerance)
        value = problem.value(loop().to(y))
        gap = float(((value - solution.lower) / (start - solution.lower)).max())
        if gap <= GAP:
            break
    return loop, gap


def _median(seconds: list[float]) -> str:
    spread = max(seconds) - min(seconds)
    return f"{statistics.median(seconds):.2f} s (± {spread / 2:.2f})"


def main() -> str:
    """Return the section with both tables."""
    with threads(1):
        sides = (32,) if quick() else (64, 128, 256)
        turns = 1 if quick() else TURNS
        head = ["volume", "status", "mirrordescent", "scikit-image", "ratio", "peak memory"]
        volumes = table(head, [compare_volumes(side, turns) for side in sides])
        count, length = (40, 100) if quick() else (10_000, 1000)
        head = ["series", "proven", "mirrordescent", "OSQP in a loop", "ratio"]
        series = table(head, compare_series(count, length, turns))
    return f"{about(__doc__)}\n{volumes}\n{series}"


if __name__ == "__main__":
    if "--memory" in sys.argv:
        denoise_volume(volume(int(sys.argv[-1])))
        print(peak_megabytes() / 1e3)
    else:
        print(main())
