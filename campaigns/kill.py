"""Ended at any moment, by signals or by a power cut: what is resumed ends as if nothing had
happened.

Learning, the restoration of a folder and an experiment are forked from a process that is warm, and
killed within the time they take. Commands (``train``, another name of ``learn``) are started cold,
and killed at any moment, also during imports.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from PIL import Image
from torch import Tensor

from campaigns.children import forked, restore, train
from campaigns.tally import Tally
from mirrordescent._internal.files import Damaged, read_whole, write_whole
from mirrordescent_experiments import reproduction

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
SHARES = {"learn": 60, "solve": 26, "reproduce": 11, "command": 3}  # the last takes seconds each
SYNCS = {"learn": 30, "solve": 8, "reproduce": 16}  # about as many as there are
LATE = "too late"
TOML = """
name = "mine"
[family]
type = "svm"
first = 3
second = 5
[map]
type = "diagonal"
[method]
name = "lsmd"
[settings]
meta_steps = 40
horizon = 3
batch = 2
save_every = 5
"""


class PowerCut:
    """Everything that was written and not yet synced is lost, up to a random part of it, at the
    n-th sync.
    """

    def __init__(self, folder: Path, at: int, random: Random) -> None:
        self.folder = folder
        self.left = at
        self.random = random
        there = [path.stat() for path in folder.rglob("*") if path.is_file()]
        self.synced = {
            found.st_ino: found.st_size for found in there
        }  # what was there before has lasted
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
                safe = self.synced.get(path.stat().st_ino, 0)
                size = path.stat().st_size
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
        self.place = place
        self.tally = tally
        self.random = tally.random
        self.hits = self.cold = 0
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
        self.pictures = _contents(place / "restored", "*.png")
        reproduce(place / "warm")
        began = time.monotonic()
        reproduce(place / "results")
        self.seconds["reproduce"] = time.monotonic() - began
        self.results = _contents(place / "results" / "phantoms")
        (place / "mine.toml").write_text(TOML)
        self.trained: dict[str, Tensor] | None = None

    def learn(self) -> None:
        """Interrupt learning one to three times, then let it end."""
        run = self.place / "run"
        shutil.rmtree(run, ignore_errors=True)
        for _ in range(self.random.randint(1, 3)):
            how, code = self._interrupt("learn", lambda: train(run), run)
            if wrong := damaged_files(run):
                self.tally.fault(f"learn, {how}", wrong)
            self._hit(f"learn, {how}", _ended(code))
        self._compare(run)

    def _interrupt(self, kind: str, work: Callable[[], object], folder: Path) -> tuple[str, int]:
        """Do something in a warm process, and end it at a random moment: return in which way, and
        its exit code.
        """
        how = self.random.choice([*SIGNALS, "power cut"])
        if how != "power cut":
            return how, forked(work, SIGNALS[how], self.random.uniform(0, self.seconds[kind]))
        cut = self.random.randint(1, SYNCS[kind])
        seed = self.random.random()
        return how, forked(lambda: (PowerCut(folder, cut, Random(seed)), work()))

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
        how, code = self._interrupt("solve", lambda: restore(self.place / "images", out), out)
        for name, content in _contents(out, "*.png").items():
            if content != self.pictures[name]:
                self.tally.fault(f"solve, {how}", f"{name} is not whole")
        self._hit(f"solve, {how}", _ended(code))
        if self.random.random() < 0.2:
            forked(lambda: restore(self.place / "images", out))
            self._same("solve, again", _contents(out, "*.png"), self.pictures)

    def reproduce(self) -> None:
        """Interrupt an experiment, look at what is there, and do it again."""
        out = self.place / "reproduced"
        shutil.rmtree(out, ignore_errors=True)
        how, code = self._interrupt("reproduce", lambda: reproduce(out), out)
        for name, content in _contents(out / "phantoms").items():
            if content != self.results[name]:
                self.tally.fault(f"reproduce, {how}", f"{name} is not whole")
        self._hit(f"reproduce, {how}", _ended(code))
        if self.random.random() < 0.2:
            forked(lambda: reproduce(out))
            self._same("reproduce, again", _contents(out / "phantoms"), self.results)
            if stray := list(out.glob(".*")):
                self.tally.fault("reproduce, again", f"{stray} left behind")

    def command(self) -> None:
        """Interrupt a command from a cold start, at any moment, some times; then let it end."""
        runs = self.place / "runs"
        if self.trained is None:
            self.trained = self._train(None)
        shutil.rmtree(runs, ignore_errors=True)
        for _ in range(3):
            how = self.random.choice(list(SIGNALS))
            self._train(how)
        found = self._train(None)
        if found is None or not all(
            torch.equal(found[name], tensor) for name, tensor in (self.trained or {}).items()
        ):
            self.tally.fault("train, resumed", "to another result")
        self.tally.note("train, resumed", "bit-identical")

    def _train(self, how: str | None) -> dict[str, Tensor] | None:
        """Start the command, and end it by a signal after a while; return what it has learned if it
        came to its end.
        """
        out = self.place / "learned"
        shutil.rmtree(out, ignore_errors=True)
        arguments = [
            "train",
            str(self.place / "mine.toml"),
            "--runs",
            str(self.place / "runs"),
            "--out",
            str(out),
        ]
        command = [
            sys.executable,
            "-c",
            "from mirrordescent.__main__ import main; main()",
            *arguments,
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if how is not None:
            time.sleep(self.random.uniform(0.0, 6.0))
            process.send_signal(SIGNALS[how])
        said = process.communicate()[1]
        code = process.returncode
        if wrong := damaged_files(self.place / "runs") + damaged_files(out):
            self.tally.fault(f"train, {how}, cold", wrong)
        if how is not None:
            self._judge(how, code, said)
            return None
        return read_whole(out / "mine.safetensors")[0] if code == 0 else None

    def _judge(self, how: str, code: int, said: str) -> None:
        """A command that was interrupted says so in a line, and nothing else."""
        kind = f"train, {how}, cold"
        ours = "mirrordescent" in said
        if "Traceback" in said and ours:
            self.tally.fault(kind, said[-300:])
        elif how == "SIGINT" and code not in (0, 130):
            # Before the first line of ours runs, the interpreter has words and an exit code of its
            # own.
            starting = not ours and (code == -signal.SIGINT or "Fatal Python error: init" in said)
            if not starting:
                self.tally.fault(kind, f"exit code {code}: {said[-250:]}")
            self._hit(kind, "while Python started" if starting else _ended(code), cold=True)
        else:
            self._hit(kind, _ended(code), cold=True)

    def _hit(self, kind: str, outcome: str, cold: bool = False) -> None:
        """Note a kill; those that came too late were none."""
        self.tally.note(kind, outcome)
        self.hits += outcome != LATE
        self.cold += cold and outcome != LATE
        self.tally.measure("kills that hit", f"{self.hits}, of them {self.cold} from a cold start")

    def _same(self, what: str, found: dict[str, bytes], expected: dict[str, bytes]) -> None:
        self.tally.note(what, "the same files") if found == expected else self.tally.fault(
            what, "other files"
        )


def _ended(code: int) -> str:
    return "ended at once" if code < 0 else f"exit code {code}" if code else LATE


def reproduce(out: Path) -> None:
    """Run the smallest experiment."""
    reproduction.reproduce("phantoms", "quick", out, None, lambda line: None)


def _contents(folder: Path, names: str = "*") -> dict[str, bytes]:
    """Return all files of a folder that are not hidden."""
    return {
        path.name: path.read_bytes() for path in folder.glob(names) if not path.name.startswith(".")
    }


def run(tally: Tally) -> None:
    """Kill all of it again and again."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # in the background of a shell it is ignored
    with tempfile.TemporaryDirectory() as folder:
        kill = Kill(Path(folder), tally)
        for _ in tally.cases():
            getattr(kill, tally.random.choices(list(SHARES), list(SHARES.values()))[0])()
