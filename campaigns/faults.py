"""Disks that fail, memory that runs out, clocks that jump: a clear error and nothing lost, or
nothing at all.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from campaigns.children import forked, restore, train
from campaigns.kill import damaged_files
from campaigns.tally import Tally
from mirrordescent import SMD, Quadratic, TVDenoising, certify
from mirrordescent._internal import cache
from mirrordescent._internal.files import read_whole, write_whole
from mirrordescent.learn import Draw, ProblemFamily, Settings, learn
from mirrordescent.learn.families import generators
from mirrordescent.mirrors import Diagonal

ERRORS = {
    "full": errno.ENOSPC,
    "read-only": errno.EROFS,
    "no permission": errno.EACCES,
    "broken": errno.EIO,
}


def _failing(after: int, number: int) -> None:
    """Let every sync after so many fail."""
    sync = os.fsync
    count = iter(range(10**9))

    def fsync(handle: int) -> None:
        if next(count) >= after:
            raise OSError(number, os.strerror(number))
        sync(handle)

    os.fsync = fsync


def _slow() -> None:
    sync = os.fsync

    def fsync(handle: int) -> None:
        time.sleep(0.01)
        sync(handle)

    os.fsync = fsync


def _vanishing(run: Path, step: int) -> Callable[[int], None]:
    return lambda now: shutil.rmtree(run) if now == step else None


def disk(tally: Tally) -> None:
    """Learn on disks that fail in the middle; then on one that works."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        whole = train(place / "whole")
        for _ in tally.cases():
            run = place / "run"
            random = tally.random
            shutil.rmtree(run, ignore_errors=True)
            how = random.choice([*ERRORS, "small", "slow", "vanished"])
            after = random.randint(1, 20)
            if how in ERRORS:
                code = forked(lambda: (_failing(after, ERRORS[how]), train(run)))
            elif how == "small":  # a file cannot grow beyond a size
                size = random.randint(0, 6000)
                code = forked(
                    lambda: (resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)), train(run))
                )
            elif how == "slow":
                code = forked(lambda: (_slow(), train(run)))
            else:
                code = forked(lambda: train(run, _vanishing(run, after)))
            if code not in (0, 2) or (wrong := damaged_files(run)):
                tally.fault(how, f"exit code {code}" if code not in (0, 2) else wrong)
                continue
            again = forked(lambda: write_whole(train(run), {}, place / "end.safetensors"))
            found = read_whole(place / "end.safetensors")[0] if not again else {}
            if again or not all(torch.equal(found[name], whole[name]) for name in whole):
                tally.fault(how, "resumed to another result")
            tally.note(how, "an error, and resumed to the same" if code else "no matter")


class Wide(ProblemFamily):
    """½‖x − c‖² in so many dimensions: learning that needs memory."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions

    def draw(self, seeds: Tensor) -> Draw:
        centres = torch.stack(
            [torch.randn(self.dimensions, generator=each) for each in generators(seeds)]
        )
        start = torch.zeros_like(centres)
        return Draw(Quadratic(torch.ones(self.dimensions), centres), start, start[:, 0])

    def validation(self, count: int) -> Draw:
        return self.draw(torch.arange(count) + 10**6)


def memory(tally: Tally) -> None:
    """Certify and learn with little address space, in processes that have done it before with
    enough of it.

    Importing half of torch without memory ends in any way that the interpreter knows: what is tried
    is our own work.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"

        def work(how: str, size: int) -> None:
            if how == "learn":
                method = SMD(Diagonal(nn.Parameter(torch.ones(size))), 0.1)
                learn(
                    Wide(size),
                    method,
                    Settings(meta_steps=2, batch=2, horizon=3),
                    folder=run,
                    progress=False,
                )
            elif how == "certify":
                certify(TVDenoising(torch.rand(1, 1, size // 512, 512)), 0.5, cache=False)
            else:
                restore(Path(folder) / "images", Path(folder) / "out")

        (Path(folder) / "images").mkdir()
        for name in ("learn", "certify", "solve"):
            Image.fromarray(torch.full((32, 32), 99, dtype=torch.uint8).numpy()).save(
                Path(folder) / "images" / "a.png"
            )
            work(name, 1024)
        for _ in tally.cases():
            how = tally.random.choice(("learn", "certify", "solve"))
            size = tally.random.choice((1024, 1 << 18, 1 << 21))
            pixels = torch.randint(256, (size // 512, 512), dtype=torch.uint8).numpy()
            Image.fromarray(pixels).save(Path(folder) / "images" / "a.png")
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            limit = used + int(10 ** tally.random.uniform(4, 9))
            for each in (run, Path(folder) / "out"):
                shutil.rmtree(each, ignore_errors=True)
            code = forked(
                lambda: (resource.setrlimit(resource.RLIMIT_AS, (limit, limit)), work(how, size))
            )
            if code not in (0, 2) or (wrong := damaged_files(run)):
                tally.fault(
                    how,
                    f"exit code {code} with {limit - used} bytes" if code not in (0, 2) else wrong,
                )
            else:
                tally.note(how, "an error" if code else "enough")


def clock(tally: Tally) -> None:
    """Learn and certify while clocks jump: results are the same."""
    with tempfile.TemporaryDirectory() as folder:
        whole = train(Path(folder) / "whole")
        problem = TVDenoising(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
        lower = certify(problem, cache=False).lower
        assert cache.VERSION

        def jumping() -> float:
            return 1e9 * tally.random.uniform(-1, 1)

        real = time.perf_counter, time.time
        for _ in tally.cases():
            run = Path(folder) / "run"
            shutil.rmtree(run, ignore_errors=True)
            time.perf_counter = time.time = jumping
            try:
                found = train(run)
                bound = certify(problem, cache=False).lower
            except Exception as error:
                tally.fault("jumps", error)
                continue
            finally:
                time.perf_counter, time.time = real
            same = all(torch.equal(found[name], whole[name]) for name in whole) and torch.equal(
                bound, lower
            )
            tally.note("jumps", "the same result") if same else tally.fault(
                "jumps", "another result"
            )
