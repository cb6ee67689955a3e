"""Interruptions by signals or a power cut: a resumed run ends as if it had not been interrupted.

Learning, the restoration of a folder and an experiment are forked from a warm process and killed
within their usual duration. Commands (``train``, another name of ``learn``) are started cold and
killed at any moment, also during imports.
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

from campaigns.children import equal_tensors, forked, restore, train
from campaigns.tally import Tally
from mirrordescent._internal.files import Damaged, read_whole, write_whole
from mirrordescent_experiments import reproduction

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
POWER_CUT = "power cut"

CASE_WEIGHTS = {"learn": 60, "solve": 26, "reproduce": 11, "command": 3}
"""Relative frequency of the kinds of cases; a command takes seconds."""

SYNC_COUNTS = {"learn": 30, "solve": 8, "reproduce": 16}
"""Approximate number of ``fsync`` calls in each kind of work."""

TOO_LATE = "too late"
"""Outcome of work that had ended before it was interrupted."""

RECIPE = """
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
    """A power cut at the n-th ``fsync``: bytes that are not synced are lost up to a random part.

    Args:
        folder: Folder that loses data.
        at: Number n of the call.
        random: Random generator.
    """

    def __init__(self, folder: Path, at: int, random: Random) -> None:
        self.folder = folder
        self.calls_left = at
        self.random = random
        self.synced_sizes: dict[int, int] = {}
        for path in folder.rglob("*"):
            if path.is_file():
                status = path.stat()
                self.synced_sizes[status.st_ino] = status.st_size
        os.fsync = self

    def __call__(self, handle: int) -> None:
        """Sync a file, or cut the power before or after that."""
        self.calls_left -= 1
        if self.calls_left == 0 and self.random.random() < 0.5:
            self.cut()
        status = os.fstat(handle)
        self.synced_sizes[status.st_ino] = status.st_size
        if self.calls_left == 0:
            self.cut()

    def cut(self) -> None:
        """Truncate files that are not synced, and end the process."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                status = path.stat()
                safe = min(self.synced_sizes.get(status.st_ino, 0), status.st_size)
                os.truncate(path, self.random.randint(safe, status.st_size))
        os._exit(99)


def damaged_files(folder: Path) -> list[str]:
    """Return descriptions of all files with a final name that are damaged."""
    damaged = []
    for path in folder.rglob("*"):
        try:
            if path.suffix == ".safetensors":
                read_whole(path)
            elif path.suffix == ".png" and not path.name.startswith("."):
                with Image.open(path) as picture:
                    picture.load()
        except (Damaged, OSError, SyntaxError) as error:
            damaged.append(f"{path.name}: {error}")
    return damaged


class Interruptions:
    """The cases of the campaign, with the results of uninterrupted work to compare with.

    Args:
        folder: Folder to work in.
        tally: Tally of the campaign.
    """

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.folder = folder
        self.tally = tally
        self.random = tally.random
        self.interrupted = 0
        self.interrupted_cold = 0
        self.images = folder / "images"
        self._write_images()
        self.seconds = {
            "learn": _duration(train, folder),
            "solve": _duration(lambda out: restore(self.images, out), folder),
            "reproduce": _duration(reproduce, folder),
        }
        self.learned = train(folder / "learned-whole")
        self.log = (folder / "learned-whole" / "log.jsonl").read_text()
        restore(self.images, folder / "restored-whole")
        self.pictures = _contents(folder / "restored-whole", "*.png")
        reproduce(folder / "reproduced-whole")
        self.results = _contents(folder / "reproduced-whole" / "phantoms")
        (folder / "mine.toml").write_text(RECIPE)
        self.trained: dict[str, Tensor] | None = None

    def _write_images(self) -> None:
        self.images.mkdir()
        generator = torch.Generator().manual_seed(0)
        for i in range(4):
            pixels = (255 * torch.rand(8 + i % 2, 9, generator=generator)).byte().numpy()
            Image.fromarray(pixels).save(self.images / f"{i}.png")

    def learn(self) -> None:
        """Interrupt learning one to three times, then let it end and compare."""
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        for _ in range(self.random.randint(1, 3)):
            cause, code = self._interrupt("learn", lambda: train(run), run)
            if damaged := damaged_files(run):
                self.tally.fault(f"learn, {cause}", damaged)
            self._count(f"learn, {cause}", _outcome(code))
        self._check_resumed(run)

    def _interrupt(self, kind: str, work: Callable[[], object], folder: Path) -> tuple[str, int]:
        """Run work in a forked process and end it at a random moment; return cause and code."""
        cause = self.random.choice([*SIGNALS, POWER_CUT])
        if cause != POWER_CUT:
            after = self.random.uniform(0, self.seconds[kind])
            return cause, forked(work, SIGNALS[cause], after)
        at = self.random.randint(1, SYNC_COUNTS[kind])
        seed = self.random.random()

        def work_until_cut() -> None:
            PowerCut(folder, at, Random(seed))
            work()

        return cause, forked(work_until_cut)

    def _check_resumed(self, run: Path) -> None:
        """Resume learning and compare the result with that of an uninterrupted run."""
        kind = "learn, resumed"
        result = self.folder / "result.safetensors"
        code = forked(lambda: write_whole(train(run), {}, result))
        if code:
            self.tally.fault(kind, f"exit code {code}")
            return
        if not equal_tensors(read_whole(result)[0], self.learned):
            self.tally.fault(kind, "to another result")
        if (run / "log.jsonl").read_text() != self.log:
            self.tally.fault(kind, "with another log")
        if stray := list(run.glob(".*.partial")):
            self.tally.fault(kind, f"{stray} left behind")
        self.tally.note(kind, "bit-identical")

    def solve(self) -> None:
        """Interrupt the restoration of a folder and check its files; sometimes do it again."""
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        cause, code = self._interrupt("solve", lambda: restore(self.images, out), out)
        self._check_whole(f"solve, {cause}", _contents(out, "*.png"), self.pictures)
        self._count(f"solve, {cause}", _outcome(code))
        if self.random.random() < 0.2:
            forked(lambda: restore(self.images, out))
            same = _contents(out, "*.png") == self.pictures
            self.tally.expect("solve, again", same, "the same files", "other files")

    def reproduce(self) -> None:
        """Interrupt an experiment and check its files; sometimes do it again."""
        out = self.folder / "reproduced"
        shutil.rmtree(out, ignore_errors=True)
        cause, code = self._interrupt("reproduce", lambda: reproduce(out), out)
        self._check_whole(f"reproduce, {cause}", _contents(out / "phantoms"), self.results)
        self._count(f"reproduce, {cause}", _outcome(code))
        if self.random.random() < 0.2:
            forked(lambda: reproduce(out))
            same = _contents(out / "phantoms") == self.results
            self.tally.expect("reproduce, again", same, "the same files", "other files")
            if stray := list(out.glob(".*")):
                self.tally.fault("reproduce, again", f"{stray} left behind")

    def _check_whole(self, kind: str, files: dict[str, bytes], expected: dict[str, bytes]) -> None:
        """Check that every file that exists has its final content."""
        for name, content in files.items():
            if content != expected[name]:
                self.tally.fault(kind, f"{name} is not whole")

    def command(self) -> None:
        """Interrupt a cold command three times, then let it end and compare."""
        if self.trained is None:
            self.trained = self._train(None)
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        for _ in range(3):
            self._train(self.random.choice(list(SIGNALS)))
        trained = self._train(None)
        if trained is None or not equal_tensors(trained, self.trained or {}):
            self.tally.fault("train, resumed", "to another result")
        self.tally.note("train, resumed", "bit-identical")

    def _train(self, cause: str | None) -> dict[str, Tensor] | None:
        """Start the command, and end it by a signal after some seconds.

        Args:
            cause: Name of the signal; None to let the command end.

        Returns:
            The learned tensors, if the command came to its end.
        """
        out = self.folder / "learned"
        runs = self.folder / "runs"
        shutil.rmtree(out, ignore_errors=True)
        start = "from mirrordescent.__main__ import main; main()"
        arguments = ["train", self.folder / "mine.toml", "--runs", runs, "--out", out]
        process = subprocess.Popen(
            [sys.executable, "-c", start, *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if cause is not None:
            time.sleep(self.random.uniform(0.0, 6.0))
            process.send_signal(SIGNALS[cause])
        errors = process.communicate()[1]
        code = process.returncode
        if damaged := damaged_files(runs) + damaged_files(out):
            self.tally.fault(f"train, {cause}, cold", damaged)
        if cause is not None:
            self._check_interrupted(cause, code, errors)
            return None
        if code:
            return None
        return read_whole(out / "mine.safetensors")[0]

    def _check_interrupted(self, cause: str, code: int, errors: str) -> None:
        """Check that an interrupted command printed one line and no traceback of the library."""
        kind = f"train, {cause}, cold"
        from_library = "mirrordescent" in errors
        if "Traceback" in errors and from_library:
            self.tally.fault(kind, errors[-300:])
            return
        if cause != "SIGINT" or code in (0, 130):
            self._count(kind, _outcome(code), cold=True)
            return
        # Before the library is imported, the interpreter has its own messages and exit codes.
        startup_error = code == -signal.SIGINT or "Fatal Python error: init" in errors
        if startup_error and not from_library:
            self._count(kind, "while Python started", cold=True)
            return
        self.tally.fault(kind, f"exit code {code}: {errors[-250:]}")
        self._count(kind, _outcome(code), cold=True)

    def _count(self, kind: str, outcome: str, cold: bool = False) -> None:
        """Note an interruption; those that came too late are not counted as such."""
        self.tally.note(kind, outcome)
        if outcome != TOO_LATE:
            self.interrupted += 1
            self.interrupted_cold += cold
        counts = f"{self.interrupted}, of them {self.interrupted_cold} from a cold start"
        self.tally.measure("kills that hit", counts)


def _duration(work: Callable[[Path], object], folder: Path) -> float:
    """Return the seconds that work takes in a warm process."""
    seconds = 0.0
    for _ in range(2):
        with tempfile.TemporaryDirectory(dir=folder) as out:
            started = time.monotonic()
            work(Path(out))
            seconds = time.monotonic() - started
    return seconds


def _outcome(code: int) -> str:
    """Describe the exit code of interrupted work."""
    if code < 0:
        return "ended at once"
    if code > 0:
        return f"exit code {code}"
    return TOO_LATE


def reproduce(out: Path) -> None:
    """Run the smallest experiment."""
    reproduction.reproduce("phantoms", "quick", out, None, lambda line: None)


def _contents(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    """Return the contents of all files in a folder that are not hidden, by name."""
    paths = [path for path in folder.glob(pattern) if not path.name.startswith(".")]
    return {path.name: path.read_bytes() for path in paths}


def run(tally: Tally) -> None:
    """Run the campaign."""
    # The shell makes background processes ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        interruptions = Interruptions(Path(folder), tally)
        cases: dict[str, Callable[[], None]] = {
            "learn": interruptions.learn,
            "solve": interruptions.solve,
            "reproduce": interruptions.reproduce,
            "command": interruptions.command,
        }
        for _ in tally.cases():
            kind = tally.random.choices(list(CASE_WEIGHTS), list(CASE_WEIGHTS.values()))[0]
            cases[kind]()
