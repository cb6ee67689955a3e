"""Ended at any moment, by signals or by a power cut: what is resumed ends as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import torch
from PIL import Image
from torch import Tensor

from campaigns.children import forked, restore, train
from campaigns.tally import Tally
from mirrordescent.files import Damaged, read_whole, write_whole

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
COLD = 0.02  # share of the kills from a cold start, each of which takes seconds


class PowerCut:
    """Everything that was written and not yet synced is lost, up to a random part of it, at the n-th sync."""

    def __init__(self, folder: Path, at: int, random: Random) -> None:
        self.folder, self.left, self.random = folder, at, random
        there = [path.stat() for path in folder.rglob("*") if path.is_file()]
        self.synced = {found.st_ino: found.st_size for found in there}  # what was there before has lasted
        self.sync = os.fsync
        os.fsync = self

    def __call__(self, handle: int) -> None:
        """Sync, or cut the power before or after it."""
        self.left -= 1
        if self.left == 0 and self.random.random() < 0.5:
            self.cut()
        found = os.fstat(handle)
        self.synced[found.st_ino] = found.st_size
        if self.left == 0:
            self.cut()

    def cut(self) -> None:
        """Drop what was not synced, and end the process."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                safe, size = self.synced.get(path.stat().st_ino, 0), path.stat().st_size
                os.truncate(path, self.random.randint(min(safe, size), size))
        os._exit(99)


def damaged_files(folder: Path) -> list[str]:
    """Return the files under a final name that are not whole."""
    wrong = []
    for path in folder.rglob("*"):
        try:
            if path.suffix == ".safetensors":
                read_whole(path)
            elif path.suffix == ".png" and not path.name.startswith("."):
                with Image.open(path) as picture:
                    picture.load()
        except (Damaged, OSError, SyntaxError) as error:
            wrong.append(f"{path.name}: {error}")
    return wrong


class Kill:
    """A place to work in, and how it ends if nobody interferes."""

    def __init__(self, place: Path, tally: Tally) -> None:
        self.place, self.tally, self.random = place, tally, tally.random
        train(place / "warm")
        began = time.monotonic()
        self.learned = train(place / "whole")
        self.log = (place / "whole" / "log.jsonl").read_text()
        self.seconds = {"learn": time.monotonic() - began}
        images = place / "images"
        images.mkdir()
        generator = torch.Generator().manual_seed(0)
        for i in range(4):
            pixels = (255 * torch.rand(8 + i % 2, 9, generator=generator)).byte().numpy()
            Image.fromarray(pixels).save(images / f"{i}.png")
        restore(images, place / "warm")
        began = time.monotonic()
        restore(images, place / "restored")
        self.seconds["solve"] = time.monotonic() - began
        self.pictures = {path.name: path.read_bytes() for path in (place / "restored").glob("*.png")}

    def learn(self) -> None:
        """Interrupt learning one to three times, then let it end."""
        run = self.place / "run"
        shutil.rmtree(run, ignore_errors=True)
        for _ in range(self.random.randint(1, 3)):
            how = self.random.choice([*SIGNALS, "power cut"])
            if how == "power cut":
                cut, seed = self.random.randint(1, 30), self.random.random()
                code = forked(lambda: (PowerCut(run, cut, Random(seed)), train(run)))
            elif self.random.random() < COLD:
                code, how = self._cold(run, SIGNALS[how]), f"{how}, cold"
            else:
                after = self.random.uniform(0, self.seconds["learn"])
                code = forked(lambda: train(run), SIGNALS[how], after)
            if wrong := damaged_files(run):
                self.tally.fault(f"learn, {how}", wrong)
            self.tally.note(f"learn, {how}", "ended at once" if code < 0 else f"exit code {code}")
        self._compare(run)

    def _cold(self, run: Path, number: int) -> int:
        code = f"from pathlib import Path; from campaigns.children import train; train(Path({str(run)!r}))"
        process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        time.sleep(self.random.uniform(0.0, 8.0))
        process.send_signal(number)
        return process.wait()

    def _compare(self, run: Path) -> None:
        end = self.place / "end.safetensors"
        code = forked(lambda: write_whole(train(run), {}, end))
        if code:
            self.tally.fault("learn, resumed", f"exit code {code}")
            return
        found: dict[str, Tensor] = read_whole(end)[0]
        if not all(torch.equal(found[name], self.learned[name]) for name in self.learned):
            self.tally.fault("learn, resumed", "to another result")
        if (run / "log.jsonl").read_text() != self.log:
            self.tally.fault("learn, resumed", "with another log")
        if stray := list(run.glob(".*.partial")):
            self.tally.fault("learn, resumed", f"{stray} left behind")
        self.tally.note("learn, resumed", "bit-identical")

    def solve(self) -> None:
        """Interrupt the restoration of a folder, look at what is there, and do it again."""
        out = self.place / "out"
        shutil.rmtree(out, ignore_errors=True)
        how = self.random.choice(list(SIGNALS))
        after = self.random.uniform(0, self.seconds["solve"])
        forked(lambda: restore(self.place / "images", out), SIGNALS[how], after)
        for path in out.glob("*.png") if out.exists() else ():
            if path.read_bytes() != self.pictures[path.name]:
                self.tally.fault(f"solve, {how}", f"{path.name} is not whole")
        self.tally.note(f"solve, {how}", "whole files only")
        if self.random.random() < 0.2:
            forked(lambda: restore(self.place / "images", out))
            same = {path.name: path.read_bytes() for path in out.glob("*.png")} == self.pictures
            self.tally.note("solve, again", "the same files") if same else self.tally.fault(
                "solve, again", "other files"
            )


def run(tally: Tally) -> None:
    """Kill learning and solving again and again."""
    with tempfile.TemporaryDirectory() as folder:
        kill = Kill(Path(folder), tally)
        for _ in tally.cases():
            (kill.learn if tally.random.random() < 0.7 else kill.solve)()
