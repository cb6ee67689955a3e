"""Many small photographs, and a few large ones, through ``mirrordescent solve``.

Memory does not grow with their number, a run that was killed is resumed, and a bad file costs only
itself.
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

MANY = 10_000
SMALL_SIDES = (48, 64)
LARGE = (8660, 5774)  # 50 megapixels
BAD = 100  # one of so many files is no picture
GROWTH = 100.0  # megabytes that ten times as many photographs may take more
MOST = 3000.0  # megabytes for photographs of 50 megapixels


class Done(NamedTuple):
    """How a command ended: its exit code, and what it took."""

    code: int
    seconds: float
    megabytes: float
    said: str


def solve(folder: Path, out: Path, *options: str, kill_after: float | None = None) -> Done:
    """Denoise a folder in a process of its own, which may be killed after some seconds."""
    arguments = ["solve", "denoise", str(folder), "--out", str(out), "--weight", "0.1", *options]
    command = [sys.executable, "-m", "mirrordescent", *arguments]
    with tempfile.TemporaryFile("w+") as said:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(
                process.pid, signal.SIGKILL
            )  # send_signal would look first, and take the exit code away
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        return Done(
            process.returncode, time.monotonic() - began, used.ru_maxrss / 1024, said.read()
        )


def write_small(folder: Path, count: int, seed: int) -> list[str]:
    """Write so many small photographs; return the names of those that are none."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    bad = []
    for i in range(count):
        height, width = random.choice(SMALL_SIDES, 2)
        name = f"{i:05d}.png"
        if i % BAD == BAD // 2:
            (folder / name).write_bytes(random.bytes(200))
            bad.append(name)
        else:
            ramp = np.add.outer(np.linspace(0, 150, height), np.linspace(0, 80, width))
            Image.fromarray(
                (ramp + random.normal(10, 8, ramp.shape)).clip(0, 255).astype(np.uint8)
            ).save(folder / name)
    return bad


def write_large(folder: Path, count: int, seed: int, size: tuple[int, int] = LARGE) -> None:
    """Write some large photographs: a smooth one with noise, in colour."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for i in range(count):
        ramp = np.add.outer(
            np.linspace(0, 150, size[1], dtype=np.float32),
            np.linspace(0, 80, size[0], dtype=np.float32),
        )
        pixels = np.empty((size[1], size[0], 3), np.uint8)
        for channel in range(3):
            noise = random.standard_normal(ramp.shape, np.float32)
            pixels[:, :, channel] = (ramp + 8 * noise + 10 * channel).clip(0, 255)
        Image.fromarray(pixels).save(folder / f"large{i}.png", compress_level=1)


def many(tally: Tally, place: Path, count: int) -> None:
    """A tenth of many photographs, all of them, and all of them again after being killed
    half-way.
    """
    few = place / "few"
    full = place / "many"
    write_small(few, count // 10, tally.seed)
    bad = write_small(full, count, tally.seed)
    first = solve(few, place / "few-out")
    done = solve(full, place / "many-out")
    grown = done.megabytes - first.megabytes
    _expect(
        tally,
        f"{count} photographs",
        grown < GROWTH,
        "memory does not grow with their number",
        f"{grown:.0f} MB",
    )
    tally.measure(f"{count} photographs of about 56² pixels", f"{done.megabytes:.0f} MB at most")
    tally.measure(f"{count // 10} of them", f"{first.megabytes:.0f} MB at most")
    tally.measure("photographs a second", f"{count / done.seconds:.0f}")
    written = {path.name for path in (place / "many-out").glob("*.png")}
    wanted = {path.name for path in full.iterdir()} - set(bad)
    only = done.code == 1 and written == wanted and all(name in done.said for name in bad)
    _expect(
        tally,
        f"{count} photographs",
        only,
        "bad ones cost only themselves",
        (done.code, done.said[-200:]),
    )
    killed = solve(full, place / "again", kill_after=done.seconds * 0.6)
    there = len(list((place / "again").glob("*.png")))
    resumed = solve(full, place / "again", "--resume")
    same = all(
        (place / "again" / name).read_bytes() == (place / "many-out" / name).read_bytes()
        for name in wanted
        if (place / "again" / name).exists()
    )
    whole = same and {path.name for path in (place / "again").glob("*.png")} == wanted
    _expect(
        tally,
        f"{count} photographs",
        whole,
        "killed and resumed, the same files",
        (killed.code, resumed.said[-200:]),
    )
    if there > count // 10:
        quicker = resumed.seconds < done.seconds
        _expect(
            tally,
            f"{count} photographs",
            quicker,
            "what was done is left out",
            (resumed.seconds, done.seconds),
        )


def large(tally: Tally, place: Path, count: int, size: tuple[int, int] = LARGE) -> None:
    """A few large photographs, in tiles."""
    write_large(place / "large", count, tally.seed, size)
    done = solve(place / "large", place / "large-out")
    written = sorted((place / "large-out").glob("*.png"))
    sizes = {Image.open(path).size for path in written}
    pixels = f"{count} photographs of {size[0] * size[1] / 1e6:.0f} megapixels"
    _expect(
        tally,
        pixels,
        len(written) == count and sizes == {size} and done.code == 0,
        "restored",
        done.said[-200:],
    )
    _expect(tally, pixels, done.megabytes < MOST, "memory is bounded", f"{done.megabytes:.0f} MB")
    tally.measure(pixels, f"{done.megabytes:.0f} MB at most, {done.seconds / count:.0f} s each")


def _expect(tally: Tally, kind: str, holds: bool, outcome: str, otherwise: object) -> None:
    tally.note(kind, outcome) if holds else tally.fault(
        f"{kind}, {outcome}", json.dumps(otherwise, default=str)
    )


def run(tally: Tally) -> None:
    """Go through both. The cases are photographs, 10 000 small and 3 large ones unless fewer are
    wanted.
    """
    Image.MAX_IMAGE_PIXELS = None
    count = min(MANY, tally.most or MANY)
    with tempfile.TemporaryDirectory() as folder:
        many(tally, Path(folder), count)
        large(
            tally,
            Path(folder),
            *((3, LARGE) if count == MANY else (1, LARGE if count >= 1000 else (700, 500))),
        )
