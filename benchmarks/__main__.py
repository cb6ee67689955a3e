"""Run benchmarks, and write what was found to docs/results: ``python -m benchmarks``, or only some, by their names."""

import sys
from pathlib import Path

from benchmarks import (
    diagnostics,
    network_unrolling,
    optimiser_step,
    robustness,
    solve_loop,
    time_to_gap,
    unrolling,
)
from benchmarks.measure import CONSOLE, machine

TABLES = {
    "solve_loop": solve_loop.main,
    "unrolling": unrolling.main,
    "network_unrolling": network_unrolling.main,
    "optimiser_step": optimiser_step.main,
    "diagnostics": diagnostics.main,
    "robustness": robustness.main,
}
PAGE = Path(__file__).parent.parent / "docs" / "results" / "benchmarks.md"


def main(names: list[str]) -> None:
    """Run those named, or all, and write the page."""
    if unknown := set(names) - {*TABLES, "time_to_gap"}:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(TABLES)}, time_to_gap")
    for name, measure in TABLES.items():
        if not names or name in names:
            measure()
    parts = [f"# Benchmarks\n\nMeasured side by side on {machine()}.\n"]
    if tables := CONSOLE.export_text():
        parts.append(f"```\n{tables}```\n")
    if not names or "time_to_gap" in names:
        parts.append(time_to_gap.main())
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
