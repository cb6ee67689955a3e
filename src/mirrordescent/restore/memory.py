"""Memory that a solve needs, and memory that is available."""

import ctypes
import os
from pathlib import Path
from typing import Any

from mirrordescent.methods.base import Method
from mirrordescent.mirrors.icnn import ConvICNN
from mirrordescent.problems.tv import TVInpainting

# Peaks of resident memory, measured in arrays of the size of one channel. They hold iterates,
# checks, temporaries and the hidden layers of a network.
ARRAYS = 30
ARRAYS_PER_FILTER = 7
ARRAYS_WITHOUT_METHOD = 10
# Parameters of mallopt in glibc's malloc.h.
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3


def needed_memory(problem: TVInpainting, method: Method[Any] | None) -> int:
    """Estimate the peak memory of solving a problem, in bytes.

    Args:
        problem: The problem.
        method: The method, or None for the memory of the data and an answer alone.
    """
    batch, channels, height, width = problem.y.shape
    arrays = ARRAYS_WITHOUT_METHOD * channels
    if method is not None:
        hidden = 0
        for part in method.modules():
            if isinstance(part, ConvICNN):
                copies = -(-channels // part.inputs)
                hidden = max(hidden, ARRAYS_PER_FILTER * part.width * copies)
        arrays = ARRAYS * channels + hidden
    return batch * height * width * arrays * problem.y.element_size()


def reuse_freed_memory() -> None:
    """Let glibc reuse freed memory instead of returning it to the system.

    Otherwise every array of some megabytes is mapped anew, page by page, which takes longer than
    computing with it. With other C libraries this does nothing.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(MMAP_THRESHOLD, 1 << 25)  # the largest value that glibc accepts; tiles need less
    mallopt(TRIM_THRESHOLD, 1 << 29)


def available_memory() -> int | None:
    """Return the memory that this process can still allocate, in bytes, or None if not known."""
    free = _free_memory()
    limit = _container_memory()
    if free is None or limit is None:
        return free if limit is None else limit
    return min(free, limit)


def _free_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _container_memory() -> int | None:
    """Return the memory that the limit of a container leaves, or None if there is no limit."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = (group / "memory.current").read_text().strip()
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None
