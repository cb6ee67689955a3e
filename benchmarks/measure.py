"""How things are measured: in turn with what they are compared with, and in separate processes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.page import MET, NOT_MET
from mirrordescent import zoo
from mirrordescent.report import Table
from mirrordescent.report.versions import processor

Row = tuple[str, ...]
QUICK = "BENCHMARKS_QUICK"  # an environment variable, which processes that are started inherit


def seconds(run: Callable[[], object]) -> float:
    """Time one call."""
    began = perf_counter()
    run()
    return perf_counter() - began


def paired_ratio(
    ours: Callable[[], object], theirs: Callable[[], object], repeats: int = 5
) -> float:
    """Return the median of ratios of runs taken in turn, so that a busy moment hits both."""
    ours()
    theirs()
    return statistics.median(seconds(ours) / seconds(theirs) for _ in range(repeats))


def peak_megabytes() -> float:
    """Return the largest memory this process has had.

    From the kernel's own account (Linux), since what ``getrusage`` reports includes the parent's
    before ``exec``.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise OSError("the peak memory is not known on this system")


def quick() -> bool:
    """Tell whether to run as little as shows that a benchmark works, instead of measuring
    (``--quick``).
    """
    return os.environ.get(QUICK, "0") != "0"


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Compute with so many threads for a while, in torch and in kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def printed_by(module: str, *arguments: object, keep_freed: bool) -> float:
    """Run a module in a fresh process and return the number it prints."""
    (number,) = all_printed_by(module, *arguments, keep_freed=keep_freed)
    return number


def all_printed_by(module: str, *arguments: object, keep_freed: bool) -> list[float]:
    """Run a module in a fresh process and return the numbers it prints.

    What glibc does with freed memory matters more than what is measured. To measure time it is kept
    and used again, so that only the arithmetic counts; to measure a peak it is given back at once,
    so that only what is alive counts. Entries that it loads are loaded here too, so that whoever
    records them does not miss any.
    """
    never = str(2**31 - 1)
    at_once = "65536"
    rules = {"MALLOC_TRIM_THRESHOLD_": never} if keep_freed else {}
    rules["MALLOC_MMAP_THRESHOLD_"] = never if keep_freed else at_once
    with tempfile.TemporaryDirectory() as folder:
        entries = Path(folder) / "entries.json"
        command = [
            sys.executable,
            "-m",
            "benchmarks.child",
            str(entries),
            module,
            *map(str, arguments),
        ]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, **rules}
        )
        for name in json.loads(entries.read_text(encoding="utf-8")):
            zoo.load(name)
    return [float(number) for number in done.stdout.split()]


def verdict(met: bool) -> str:
    """Return the verdict on a target. The page of benchmarks does not show it."""
    return MET if met else NOT_MET


def judged(label: str, measured: float, target: float | None = None, digits: str = ".2f") -> Row:
    """Return a row: what was measured, its target, and whether the target was met."""
    goal = ("", "") if target is None else (f"≤ {target:g}", verdict(measured <= target))
    return label, format(measured, digits), *goal


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, and print its rows as they come."""
    kept = []
    for row in chain([header], rows):
        print(*row, sep=" | ", file=sys.stderr, flush=True)
        kept.append(row)
    return Table(header, kept[1:]).markdown() + "\n"


def ratios(rows: Iterable[Row]) -> str:
    """Return a table of judged ratios."""
    return table(("ratio", "measured", "target", ""), rows)


def about(doc: str | None) -> str:
    """Return a module's docstring after its first line, as the text of a section."""
    return (doc or "").split("\n\n", 1)[1].strip() + "\n"


def machine() -> str:
    """Describe the machine."""
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' if threads > 1 else ''}, torch {torch.__version__}"
