"""Many small photographs and a few large ones through ``mirrordescent solve``.

Memory must not grow with the number of photographs, a killed run must be resumable, and a bad file
must not affect the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from campaigns.tally import Tally

SMALL_COUNT = 10_000
SMALL_SIDES = (48, 64)
LARGE_COUNT = 3
LARGE_SIZE = (8660, 5774)
"""Width and height of large photographs: 50 megapixels."""

BAD_EVERY = 100
"""One of this many files is no picture."""

MAX_GROWTH = 100.0
"""Megabytes that ten times as many photographs may take more."""

MAX_LARGE_MEMORY = 3000.0
"""Megabytes that photographs of 50 megapixels may take."""


class CommandResult(NamedTuple):
    """Exit code, duration, processor time, peak memory and standard error of a command."""

    code: int
    seconds: float
    work: float
    megabytes: float
    errors: str


def solve(folder: Path, out: Path, *options: str, kill_after: float | None = None) -> CommandResult:
    """Denoise a folder in a process of its own.

    Args:
        folder: Folder with photographs.
        out: Folder for the results.
        options: Further options of the command.
        kill_after: Seconds after which the process is killed.
    """
    arguments = ["solve", "denoise", str(folder), "--out", str(out), "--weight", "0.1", *options]
    command = [sys.executable, "-m", "mirrordescent", *arguments]
    with tempfile.TemporaryFile("w+") as errors:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        if kill_after is not None:
            time.sleep(kill_after)
            # Popen.send_signal would poll first, and so consume the exit code.
            os.kill(process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        errors.seek(0)
        work = usage.ru_utime + usage.ru_stime
        megabytes = usage.ru_maxrss / 1024
        return CommandResult(process.returncode, seconds, work, megabytes, errors.read())


def write_small(folder: Path, count: int, seed: int) -> list[str]:
    """Write small photographs, some of which are damaged; return the names of the damaged."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    damaged = []
    for i in range(count):
        height, width = random.choice(SMALL_SIDES, 2)
        path = folder / f"{i:05d}.png"
        if i % BAD_EVERY == BAD_EVERY // 2:
            path.write_bytes(random.bytes(200))
            damaged.append(path.name)
            continue
        ramp = np.add.outer(np.linspace(0, 150, height), np.linspace(0, 80, width))
        noisy = ramp + random.normal(10, 8, ramp.shape)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path)
    return damaged


def write_large(folder: Path, count: int, seed: int, size: tuple[int, int] = LARGE_SIZE) -> None:
    """Write large colour photographs: a smooth one with noise."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    width, height = size
    rows = np.linspace(0, 150, height, dtype=np.float32)
    columns = np.linspace(0, 80, width, dtype=np.float32)
    ramp = np.add.outer(rows, columns)
    for i in range(count):
        pixels = np.empty((height, width, 3), np.uint8)
        for channel in range(3):
            noise = random.standard_normal(ramp.shape, np.float32)
            pixels[:, :, channel] = (ramp + 8 * noise + 10 * channel).clip(0, 255)
        Image.fromarray(pixels).save(folder / f"large{i}.png", compress_level=1)


def many(tally: Tally, folder: Path, count: int) -> None:
    """Restore a tenth of many photographs, then all, then all again after a kill half-way."""
    kind = f"{count} photographs"
    write_small(folder / "few", count // 10, tally.seed)
    damaged = write_small(folder / "many", count, tally.seed)
    expected = {path.name for path in (folder / "many").iterdir()} - set(damaged)
    few = solve(folder / "few", folder / "few-out")
    whole = solve(folder / "many", folder / "many-out")
    growth = whole.megabytes - few.megabytes
    _expect(
        tally,
        kind,
        growth < MAX_GROWTH,
        "memory does not grow with their number",
        f"{growth:.0f} MB",
    )
    tally.measure(f"{kind} of about 56² pixels", f"{whole.megabytes:.0f} MB at most")
    tally.measure(f"{count // 10} of them", f"{few.megabytes:.0f} MB at most")
    tally.measure("photographs a second", f"{count / whole.seconds:.0f}")
    reported = all(name in whole.errors for name in damaged)
    written = _pictures(folder / "many-out").keys()
    _expect(
        tally,
        kind,
        whole.code == 1 and written == expected and reported,
        "bad ones cost only themselves",
        (whole.code, whole.errors[-200:]),
    )
    _resume(tally, kind, folder, whole, count)


def _resume(tally: Tally, kind: str, folder: Path, whole: CommandResult, count: int) -> None:
    """Kill a restoration after 60 % of its usual duration, resume it, and compare the files."""
    again = folder / "again"
    killed = solve(folder / "many", again, kill_after=0.6 * whole.seconds)
    written_before = len(_pictures(again))
    resumed = solve(folder / "many", again, "--resume")
    _expect(
        tally,
        kind,
        _pictures(again) == _pictures(folder / "many-out"),
        "killed and resumed, the same files",
        (killed.code, resumed.errors[-200:]),
    )
    if written_before > count // 10:
        _expect(
            tally,
            kind,
            resumed.work < whole.work,
            "what was done is left out",
            (resumed.work, whole.work),
        )


def _pictures(folder: Path) -> dict[str, bytes]:
    """Return the contents of all PNG files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.glob("*.png")}


def large(tally: Tally, folder: Path, count: int, size: tuple[int, int] = LARGE_SIZE) -> None:
    """Restore a few large photographs, which are processed in tiles."""
    write_large(folder / "large", count, tally.seed, size)
    result = solve(folder / "large", folder / "large-out")
    written = sorted((folder / "large-out").glob("*.png"))
    sizes = {Image.open(path).size for path in written}
    kind = f"{count} photographs of {size[0] * size[1] / 1e6:.0f} megapixels"
    complete = len(written) == count and sizes == {size} and result.code == 0
    _expect(tally, kind, complete, "restored", result.errors[-200:])
    bounded = result.megabytes < MAX_LARGE_MEMORY
    memory = f"{result.megabytes:.0f} MB"
    _expect(tally, kind, bounded, "memory is bounded", memory)
    tally.measure(kind, f"{memory} at most, {result.seconds / count:.0f} s each")


def _expect(tally: Tally, kind: str, holds: bool, outcome: str, description: object) -> None:
    if holds:
        tally.note(kind, outcome)
    else:
        tally.fault(f"{kind}, {outcome}", json.dumps(description, default=str))


def run(tally: Tally) -> None:
    """Run the campaign; its cases are photographs, 10 000 small and 3 large ones at most."""
    Image.MAX_IMAGE_PIXELS = None
    count = min(SMALL_COUNT, tally.most or SMALL_COUNT)
    with tempfile.TemporaryDirectory() as folder:
        many(tally, Path(folder), count)
        if count == SMALL_COUNT:
            large(tally, Path(folder), LARGE_COUNT)
        elif count >= 1000:
            large(tally, Path(folder), 1)
        else:
            large(tally, Path(folder), 1, (700, 500))
