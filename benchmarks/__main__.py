"""Run all benchmarks, or those named, and write the results to docs/results: ``python -m benchmarks
[NAME …]``.

With ``--quick``, some of them run as little as shows that they work, and nothing is written.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from benchmarks import (
    cost_growth,
    diagnostics,
    matrix_step,
    network_unrolling,
    optimiser_step,
    photographs,
    proofs,
    robustness,
    solve_loop,
    steps_a_call,
    streams,
    time_to_gap,
    unrolling,
)
from benchmarks.measure import QUICK, machine, quick, replaced
from mirrordescent_experiments.provenance import mark, recorded

BENCHMARKS: dict[str, tuple[str, Callable[[], str]]] = {
    "time_to_gap": ("Time to a relative gap", time_to_gap.main),
    "proofs": ("How close a proof is", proofs.main),
    "robustness": ("Problems the learned methods were not made for", robustness.main),
    "photographs": ("Photographs by default", photographs.main),
    "streams": ("A stream of problems", streams.main),
    "steps_a_call": ("Many steps a call", steps_a_call.main),
    "cost_growth": ("How the cost of a solve grows", cost_growth.main),
    "solve_loop": ("The solve loop", solve_loop.main),
    "optimiser_step": ("A step of an optimiser", optimiser_step.main),
    "matrix_step": ("A step with matrix geometry", matrix_step.main),
    "network_unrolling": ("A meta-step over networks", network_unrolling.main),
    "unrolling": ("A meta-step over images", unrolling.main),
    "diagnostics": ("Diagnostics", diagnostics.main),
}
PAGE = Path(__file__).parent.parent / "docs" / "results" / "benchmarks.md"
HEAD = """# Benchmarks

Everything is measured side by side with its peers in one run, and ratios are what counts. `make bench` runs it all and
writes this page, which takes about an hour; `python -m benchmarks NAME …` runs some and leaves the other sections as
they are. Set `OMP_NUM_THREADS` to the number of threads to measure with; some sections compare one thread with two by
themselves.
"""


def main(names: list[str]) -> None:
    """Run those named, or all, and update the page after each, so that nothing is lost."""
    if "--quick" in names:
        os.environ[QUICK] = "1"
        names = [name for name in names if name != "--quick"]
    if unknown := set(names) - set(BENCHMARKS):
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    for name in names or BENCHMARKS:
        title, measure = BENCHMARKS[name]
        began = perf_counter()
        with recorded("as in the sources") as provenance:
            found = measure()
        minutes = (perf_counter() - began) / 60
        made = f"`{name}`: {machine()}; commit {provenance['commit']}, {provenance['date']}; took {minutes:.1f} minutes."
        text = f"{made}\n\n{mark(provenance, section=True)}\n\n{found}"
        print(f"## {title}\n\n{text}", flush=True)
        if quick():
            continue
        page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        titles = [title for title, _ in BENCHMARKS.values()]
        PAGE.write_text(HEAD + replaced(page, title, text, titles), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
