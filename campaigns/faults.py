"""Disks that fail, memory that runs out, clocks that jump: a clear error and nothing lost, or nothing at all."""

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

from campaigns.children import forked, train
from campaigns.kill import damaged_files
from campaigns.tally import Tally
from mirrordescent import TVDenoising, cache, certify
from mirrordescent.files import read_whole, write_whole

ERRORS = {"full": errno.ENOSPC, "read-only": errno.EROFS, "no permission": errno.EACCES, "broken": errno.EIO}


def _failing(after: int, number: int) -> None:
    """Let every sync after so many fail."""
    sync, count = os.fsync, iter(range(10**9))

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
            run, random = place / "run", tally.random
            shutil.rmtree(run, ignore_errors=True)
            how = random.choice([*ERRORS, "small", "slow", "vanished"])
            after = random.randint(1, 20)
            if how in ERRORS:
                code = forked(lambda: (_failing(after, ERRORS[how]), train(run)))
            elif how == "small":  # a file cannot grow beyond a size
                size = random.randint(0, 6000)
                code = forked(lambda: (resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)), train(run)))
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


def memory(tally: Tally) -> None:
    """Certify and learn with little address space."""
    with tempfile.TemporaryDirectory() as folder:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        for _ in tally.cases():
            room = int(10 ** tally.random.uniform(5, 8.5))
            side = tally.random.choice((16, 256, 2048))
            how = tally.random.choice(("learn", "certify"))

            def work(room: int = room, side: int = side, how: str = how) -> None:
                resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
                if how == "learn":
                    train(Path(folder) / "run")
                else:
                    certify(TVDenoising(torch.rand(1, 1, side, side)), 0.5, cache=False)

            shutil.rmtree(Path(folder) / "run", ignore_errors=True)
            code = forked(work)
            if code not in (0, 2):
                tally.fault(how, f"exit code {code} with {room} bytes")
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
                found, bound = train(run), certify(problem, cache=False).lower
            except Exception as error:
                tally.fault("jumps", error)
                continue
            finally:
                time.perf_counter, time.time = real
            same = all(torch.equal(found[name], whole[name]) for name in whole) and torch.equal(bound, lower)
            tally.note("jumps", "the same result") if same else tally.fault("jumps", "another result")
