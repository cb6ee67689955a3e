"""Run every benchmark, and write what was found to docs/results: ``python -m benchmarks``."""

from pathlib import Path

from benchmarks import diagnostics, network_unrolling, optimiser_step, solve_loop, time_to_gap, unrolling
from benchmarks.measure import CONSOLE, machine

PAGE = Path(__file__).parent.parent / "docs" / "results" / "benchmarks.md"

if __name__ == "__main__":
    for part in (solve_loop, unrolling, network_unrolling, optimiser_step, diagnostics):
        part.main()
    tables = CONSOLE.export_text()
    gaps = time_to_gap.main()
    PAGE.write_text(f"# Benchmarks\n\nMeasured side by side on {machine()}.\n\n```\n{tables}```\n\n{gaps}")
