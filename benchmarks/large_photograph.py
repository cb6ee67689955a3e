"""Restore a photograph of 12 megapixels by the command line.

The photograph is a mosaic of validation photographs of BSDS500, 4000 × 3000 pixels in colour, with
white noise of 5 %, as a PNG file. The command is `mirrordescent solve denoise` with the learned
prior and a proven gap of 0.01 for the whole photograph, with the noise given and without. Seconds
and peak memory are those of the whole process, from the start of Python to the written file and
page. The gap is the proven one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from benchmarks.measure import Row, about, quick, table, verdict
from mirrordescent import data, zoo

WIDTH = 4000
HEIGHT = 3000
NOISE = 0.05
TOLERANCE = 1e-2
TARGETS = {"noise given": 90.0, "blind": 180.0}
"""Largest numbers of seconds on two cores."""

MOST_MEGABYTES = 2048.0
LOOK_EVERY = 0.1
"""Seconds between two looks at the memory of the process."""


class Measured(NamedTuple):
    """Costs of a process, and what it printed."""

    wall: float
    cpu: float
    megabytes: float
    printed: str


def mosaic(width: int, height: int) -> Tensor:
    """Return a picture (3, height, width) that is made of validation photographs."""
    photographs = data.bsds500("val")
    wide = [photo.mT if photo.shape[1] > photo.shape[2] else photo for photo in photographs]
    tall, broad = wide[0].shape[1:]
    columns = -(-width // broad)
    rows = []
    for row in range(-(-height // tall)):
        chosen = [wide[(row * columns + column) % len(wide)] for column in range(columns)]
        rows.append(torch.cat(chosen, 2))
    return torch.cat(rows, 1)[:, :height, :width]


def run(command: list[str]) -> Measured:
    """Run a command, and measure its time and its peak memory.

    The memory is that of the operating system's account (Linux).
    """
    began = perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    peak = 0.0
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        try:
            lines = status.read_text(encoding="utf-8").splitlines()
        except OSError:
            break
        for line in lines:
            if line.startswith("VmHWM"):
                peak = max(peak, int(line.split()[1]) / 1024)
        sleep(LOOK_EVERY)
    printed, _ = process.communicate()
    times = os.times()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}")
    cpu = times.children_user + times.children_system
    return Measured(perf_counter() - began, cpu, peak, printed)


def rows(width: int, height: int) -> Iterator[Row]:
    """Yield a row with the noise given, and one without."""
    generator = torch.Generator().manual_seed(0)
    clean = mosaic(width, height)
    noisy = (clean + NOISE * torch.randn(clean.shape, generator=generator)).clamp(0, 1)
    spent = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noisy.png"
        Image.fromarray((noisy * 255).round().byte().permute(1, 2, 0).numpy()).save(path)
        del clean, noisy
        for kind, target in TARGETS.items():
            options = ["--noise", str(NOISE)] if kind == "noise given" else []
            command = [sys.executable, "-m", "mirrordescent", "solve", "denoise", str(path)]
            command += [*options, "--tolerance", str(TOLERANCE), "--out", str(Path(folder) / kind)]
            found = run([*command, "--json"])
            cpu = found.cpu - spent  # the system adds up the times of all processes that ended
            spent = found.cpu
            (image,) = json.loads(found.printed)["images"]
            gap = image["relative_gap"]
            met = found.wall <= target and found.megabytes <= MOST_MEGABYTES and gap <= TOLERANCE
            yield (
                kind,
                f"{found.wall:.0f}",
                f"{cpu:.0f}",
                f"{found.megabytes:.0f}",
                f"{gap:.2g}",
                f"≤ {target:g} s, ≤ {MOST_MEGABYTES:g} MB",
                verdict(met),
            )


def main() -> str:
    """Restore the photograph, and return the section."""
    zoo.load("photo-prior")  # the processes load them
    zoo.load("photo-prior-denoise")
    size = (400, 300) if quick() else (WIDTH, HEIGHT)
    header = ("12 megapixels", "seconds", "processor seconds", "MB", "proven gap", "target", "")
    return about(__doc__) + "\n" + table(header, rows(*size))


if __name__ == "__main__":
    print(main())
