"""How things are measured: in turn with a peer, and in a process of their own."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from rich.console import Console

CONSOLE = Console(record=True, width=120)


def seconds(run: Callable[[], object]) -> float:
    """Time one call."""
    began = perf_counter()
    run()
    return perf_counter() - began


def paired_ratio(ours: Callable[[], object], theirs: Callable[[], object], repeats: int = 5) -> float:
    """Return the median of ratios of runs taken in turn, so that a busy moment hits both."""
    ours()
    theirs()
    return statistics.median(seconds(ours) / seconds(theirs) for _ in range(repeats))


def peak_megabytes() -> float:
    """Return the largest memory this process has had.

    From the kernel's own account (Linux), since what ``getrusage`` reports includes the parent's before ``exec``.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise OSError("the peak memory is not known on this system")


def printed_by(module: str, *arguments: object, keep_freed: bool) -> float:
    """Run a module in a fresh process and return the number it prints.

    What glibc does with freed memory decides more than what is measured. Kept, it is used again, and a time is that of
    the arithmetic; given back at once, a peak is of what is alive.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    never, at_once = str(2**31 - 1), "65536"
    rules = {"MALLOC_TRIM_THRESHOLD_": never} if keep_freed else {}
    rules["MALLOC_MMAP_THRESHOLD_"] = never if keep_freed else at_once
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **rules})
    return float(done.stdout)


def verdict(met: bool) -> str:
    """Say whether a target was met."""
    return "met" if met else "NOT MET"


def machine() -> str:
    """Describe the machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}"
