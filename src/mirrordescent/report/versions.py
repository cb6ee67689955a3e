"""Versions of programs, and the processor."""

import platform
from pathlib import Path

import torch

import mirrordescent


def versions() -> dict[str, str]:
    """Return the versions of programs, the processor, and the number of threads."""
    return {
        "mirrordescent": mirrordescent.__version__,
        "Python": platform.python_version(),
        "PyTorch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "threads": str(torch.get_num_threads()),
    }


def processor() -> str:
    """Return the model of the processor, which ``platform`` does not know on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
