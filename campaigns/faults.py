"""Failing disks, exhausted memory and jumping clocks: a clear error, and nothing is lost."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from PIL import Image
from torch import Tensor, nn

from campaigns.children import EXPECTED_ERROR, equal_tensors, forked, restore, train
from campaigns.kill import damaged_files
from campaigns.tally import Tally
from mirrordescent import SMD, Quadratic, TVDenoising, certify
from mirrordescent._internal.files import read_whole, write_whole
from mirrordescent.learn import Draw, ProblemFamily, Settings, learn
from mirrordescent.learn.families import generators
from mirrordescent.mirrors import Diagonal

DISK_ERRORS = {
    "full": errno.ENOSPC,
    "read-only": errno.EROFS,
    "no permission": errno.EACCES,
    "broken": errno.EIO,
}


def disk(tally: Tally) -> None:
    """Learn on disks that fail in the middle, then resume on a disk that works."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = train(folder / "uninterrupted")
        run = folder / "run"
        result = folder / "result.safetensors"
        for _ in tally.cases():
            shutil.rmtree(run, ignore_errors=True)
            fault = tally.random.choice([*DISK_ERRORS, "small", "slow", "vanished"])
            code = forked(_learning_with_fault(fault, run, tally.random))
            if code not in (0, EXPECTED_ERROR):
                tally.fault(fault, f"exit code {code}")
                continue
            if damaged := damaged_files(run):
                tally.fault(fault, damaged)
                continue
            failed = forked(lambda: write_whole(train(run), {}, result))
            if failed or not equal_tensors(read_whole(result)[0], expected):
                tally.fault(fault, "resumed to another result")
            tally.note(fault, "an error, and resumed to the same" if code else "no matter")


def _learning_with_fault(fault: str, run: Path, random: Random) -> Callable[[], object]:
    """Return a function that learns on a disk with a fault."""
    count = random.randint(1, 20)
    size = random.randint(0, 6000) if fault == "small" else 0

    def work() -> None:
        callback: Callable[[int], object] | None = None
        if fault in DISK_ERRORS:
            _fail_after(count, DISK_ERRORS[fault])
        elif fault == "small":  # no file can grow beyond this size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        elif fault == "slow":
            _slow_down()
        else:
            callback = _remove_at(run, count)
        train(run, callback)

    return work


def _fail_after(count: int, number: int) -> None:
    """Let every ``fsync`` after the first ones fail with an error number."""
    sync = os.fsync
    calls = iter(range(10**9))

    def fsync(handle: int) -> None:
        if next(calls) >= count:
            raise OSError(number, os.strerror(number))
        sync(handle)

    os.fsync = fsync


def _slow_down() -> None:
    """Let every ``fsync`` take ten milliseconds longer."""
    sync = os.fsync

    def fsync(handle: int) -> None:
        time.sleep(0.01)
        sync(handle)

    os.fsync = fsync


def _remove_at(run: Path, step: int) -> Callable[[int], None]:
    """Return a callback that removes the run folder at a step."""

    def remove(now: int) -> None:
        if now == step:
            shutil.rmtree(run)

    return remove


class Wide(ProblemFamily):
    """½‖x − c‖² in many dimensions: learning that needs memory.

    Args:
        dimensions: Number of entries of x.
    """

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions

    def draw(self, seeds: Tensor) -> Draw:
        centres = [torch.randn(self.dimensions, generator=g) for g in generators(seeds)]
        start = torch.zeros(len(seeds), self.dimensions)
        problem = Quadratic(torch.ones(self.dimensions), torch.stack(centres))
        return Draw(problem, start, start[:, 0])

    def validation(self, count: int) -> Draw:
        return self.draw(torch.arange(count) + 10**6)


class MemoryWork:
    """Learning, certifying and restoring, with sizes that can exceed the memory.

    Args:
        folder: Folder to work in.
    """

    KINDS = ("learn", "certify", "solve")

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.out = folder / "out"
        self.images = folder / "images"
        self.images.mkdir()

    def write_image(self, pixels: Tensor) -> None:
        """Write the photograph to restore."""
        Image.fromarray(pixels.numpy()).save(self.images / "a.png")

    def clean(self) -> None:
        """Remove all results."""
        for folder in (self.run, self.out):
            shutil.rmtree(folder, ignore_errors=True)

    def work(self, kind: str, size: int) -> None:
        """Do one kind of work at a size."""
        if kind == "learn":
            method = SMD(Diagonal(nn.Parameter(torch.ones(size))), 0.1)
            settings = Settings(meta_steps=2, batch=2, horizon=3)
            learn(Wide(size), method, settings, folder=self.run, progress=False)
        elif kind == "certify":
            certify(TVDenoising(torch.rand(1, 1, size // 512, 512)), 0.5, cache=False)
        else:
            restore(self.images, self.out)


def memory(tally: Tally) -> None:
    """Learn, certify and restore with little address space.

    Every kind of work is done once with enough memory first. Importing torch without memory would
    test the interpreter, not this library.
    """
    random = tally.random
    with tempfile.TemporaryDirectory() as name:
        worker = MemoryWork(Path(name))
        for kind in worker.KINDS:
            worker.write_image(torch.full((32, 32), 99, dtype=torch.uint8))
            worker.work(kind, 1024)
        for _ in tally.cases():
            kind = random.choice(worker.KINDS)
            size = random.choice((1024, 1 << 18, 1 << 21))
            worker.write_image(torch.randint(256, (size // 512, 512), dtype=torch.uint8))
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            free = int(10 ** random.uniform(4, 9))
            limit = pages * resource.getpagesize() + free
            worker.clean()

            def limited() -> None:
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
                worker.work(kind, size)

            code = forked(limited)
            if code not in (0, EXPECTED_ERROR):
                tally.fault(kind, f"exit code {code} with {free} bytes")
            elif damaged := damaged_files(worker.run):
                tally.fault(kind, damaged)
            else:
                tally.note(kind, "an error" if code else "enough")


def clock(tally: Tally) -> None:
    """Learn and certify while clocks jump: the results must not change."""

    def jumping() -> float:
        return 1e9 * tally.random.uniform(-1, 1)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = train(folder / "uninterrupted")
        problem = TVDenoising(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
        expected_lower = certify(problem, cache=False).lower
        clocks = time.perf_counter, time.time
        run = folder / "run"
        for _ in tally.cases():
            shutil.rmtree(run, ignore_errors=True)
            time.perf_counter = time.time = jumping
            try:
                learned = train(run)
                lower = certify(problem, cache=False).lower
            except Exception as error:
                tally.fault("jumps", error)
                continue
            finally:
                time.perf_counter, time.time = clocks
            same = equal_tensors(learned, expected) and torch.equal(lower, expected_lower)
            tally.expect("jumps", same, "the same result", "another result")
