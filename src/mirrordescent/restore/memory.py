"""How much memory a solve takes, and how much there is."""

import ctypes
import os
from pathlib import Path
from typing import Any

from mirrordescent.methods.base import Method
from mirrordescent.mirrors.icnn import ConvICNN
from mirrordescent.problems.tv import TVInpainting

# Measured as peaks of resident memory, in arrays of the size of one channel: iterates, looks and
# temporaries, and the hidden layers of a network per filter.
ARRAYS = 30
ARRAYS_PER_FILTER = 7
# numbers of glibc's malloc.h
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3


def needed(problem: TVInpainting, method: Method[Any] | None) -> int:
    """Estimate the peak memory of solving a problem by a method, in bytes; None for the data and an
    answer alone.
    """
    batch, channels, height, width = problem.y.shape
    if method is None:
        planes = 10 * channels
    else:
        networks = [part for part in method.modules() if isinstance(part, ConvICNN)]
        planes = ARRAYS * channels
        planes += max(
            (ARRAYS_PER_FILTER * net.width * -(-channels // net.inputs) for net in networks),
            default=0,
        )
    return batch * height * width * planes * problem.y.element_size()


def keep_freed() -> None:
    """Ask glibc to use freed memory again instead of giving it back; a no-op with other libraries.

    Otherwise every array of some megabytes is mapped anew, page by page, which takes longer than to
    compute with it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(MMAP_THRESHOLD, 1 << 25)  # the largest that it accepts: a tile's arrays are below
    mallopt(TRIM_THRESHOLD, 1 << 29)


def available() -> int | None:
    """Return the bytes that this process can still have, or None where the system does not say."""
    found = [_free(), _allowed()]
    return min((each for each in found if each is not None), default=None)


def _free() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _allowed() -> int | None:
    """Return what a container leaves."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (
            (group / f"memory.{name}").read_text().strip() for name in ("max", "current")
        )
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None
