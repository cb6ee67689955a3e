"""Run all benchmarks, or the named ones: ``python -m benchmarks [NAME …]``.

Results are written to docs/results. With ``--quick``, benchmarks run only long enough to show that
they work, and nothing is written. With ``--page``, nothing is measured, and the page is written
from the stored results.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from benchmarks import (
    control,
    cost_growth,
    diagnostics,
    grids,
    kernel_builds,
    large_photograph,
    matrix_step,
    network_unrolling,
    noise_levels,
    optimiser_step,
    page,
    proofs,
    ridge_gradient,
    ridge_steps,
    robustness,
    solve_loop,
    steps_a_call,
    streams,
    time_to_gap,
    unrolling,
)
from benchmarks.measure import QUICK, machine, quick
from mirrordescent_experiments.provenance import mark, recorded

BENCHMARKS: dict[str, tuple[str, Callable[[], str]]] = {
    "time_to_gap": ("Time to a relative gap", time_to_gap.main),
    "proofs": ("How close a proof is", proofs.main),
    "robustness": ("Problems the learned methods were not made for", robustness.main),
    "noise_levels": ("The noise of a photograph", noise_levels.main),
    "streams": ("A stream of problems", streams.main),
    "steps_a_call": ("Many steps a call", steps_a_call.main),
    "kernel_builds": ("Kernels of the wheel", kernel_builds.main),
    "ridge_gradient": ("The gradient of the learned regulariser", ridge_gradient.main),
    "ridge_steps": ("Learned steps with the learned prior", ridge_steps.main),
    "large_photograph": ("A photograph of 12 megapixels", large_photograph.main),
    "grids": ("Signals and volumes", grids.main),
    "control": ("Control problems in batches", control.main),
    "cost_growth": ("How the cost of a solve grows", cost_growth.main),
    "solve_loop": ("The solve loop", solve_loop.main),
    "optimiser_step": ("A step of an optimiser", optimiser_step.main),
    "matrix_step": ("A step with matrix geometry", matrix_step.main),
    "network_unrolling": ("A meta-step over networks", network_unrolling.main),
    "unrolling": ("A meta-step over images", unrolling.main),
    "diagnostics": ("Diagnostics", diagnostics.main),
}
RESULTS = Path(__file__).parent.parent / "docs" / "results"


def main(arguments: list[str]) -> None:
    """Run the named benchmarks, or all, and write the page after each of them."""
    names = [argument for argument in arguments if not argument.startswith("--")]
    if "--quick" in arguments:
        os.environ[QUICK] = "1"
    if unknown := set(names) - set(BENCHMARKS):
        raise SystemExit(
            f"unknown benchmarks: {', '.join(unknown)}; known: {', '.join(BENCHMARKS)}"
        )
    if "--page" in arguments:
        page.write(_ordered(page.read(RESULTS / "benchmarks.json")), RESULTS)
        return
    for name in names or BENCHMARKS:
        title, text = measure(name)
        print(f"## {title}\n\n{text}", flush=True)
        if not quick():
            stored = page.read(RESULTS / "benchmarks.json")
            page.write(_ordered(stored | {title: page.section_of(text)}), RESULTS)


def measure(name: str) -> tuple[str, str]:
    """Run a benchmark, and return the title and the text of its section."""
    title, run = BENCHMARKS[name]
    began = perf_counter()
    with recorded("as in the sources", run) as provenance:
        text = run()
    minutes = (perf_counter() - began) / 60
    origin = (
        f"`{name}`: {machine()}; commit {provenance['commit']}, {provenance['date']}; "
        f"took {minutes:.1f} minutes."
    )
    return title, f"{origin}\n\n{mark(provenance, section=True)}\n\n{text}"


def _ordered(sections: dict[str, page.Section]) -> dict[str, page.Section]:
    """Return the sections of known benchmarks in their order."""
    titles = [title for title, _ in BENCHMARKS.values()]
    return {title: sections[title] for title in titles if title in sections}


if __name__ == "__main__":
    main(sys.argv[1:])
