"""Many processes at the same files: kernels, cached references, run folders, entries."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import mirrordescent as md
from campaigns.children import train
from campaigns.kill import damaged_files
from campaigns.tally import Tally
from mirrordescent import TVDenoising, certify, kernels, zoo
from mirrordescent.learn.checkpoint import RunBusy
from mirrordescent.mirrors import Diagonal

PROCESSES = 6
BUSY = 3  # exit code of who was kept out


def together(*works: Callable[[], object]) -> list[int]:
    """Run things in processes at the same time; return their exit codes."""
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                work()
                code = 0
            except RunBusy:
                code = BUSY
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def run(tally: Tally) -> None:
    """Race."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        whole = train(place / "whole")
        os.environ["MIRRORDESCENT_CACHE"] = str(place / "kernels")
        codes = together(*[lambda: kernels.library()] * 3)
        tally.fault("kernels", codes) if any(codes) else tally.note(
            "kernels", "built once and loaded by three"
        )
        for number in tally.cases():
            os.environ["MIRRORDESCENT_CACHE"] = str(place / f"cache{number}")
            _entries(tally, place)
            _references(tally, number)
            _learners(tally, place / "run", whole)


def _entries(tally: Tally, place: Path) -> None:
    methods = [md.SMD(Diagonal(torch.full((n,), float(n))), 0.1) for n in (2, 50)]
    path = zoo.save(methods[0], place / "entry")

    def write() -> None:
        for i in range(20):
            zoo.save(methods[i % 2], place / "entry")

    def read() -> None:
        for _ in range(40):
            d = zoo.load(path).mirror.d
            assert bool((d == len(d)).all())

    codes = together(write, write, read, read, read)
    tally.fault("entries", codes) if any(codes) else tally.note("entries", "always whole")


def _references(tally: Tally, number: int) -> None:
    problem = TVDenoising(torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(number)))
    lower = certify(problem, 1e-3, cache=False).lower

    def look() -> None:
        assert torch.equal(certify(problem, 1e-3).lower, lower)

    codes = together(*[look] * PROCESSES)
    tally.fault("references", codes) if any(codes) else tally.note("references", "the same for all")


def _learners(tally: Tally, run: Path, whole: dict[str, torch.Tensor]) -> None:
    shutil.rmtree(run, ignore_errors=True)
    codes = together(*[lambda: train(run)] * PROCESSES)
    found = train(run)
    if set(codes) - {0, BUSY} or 0 not in codes or damaged_files(run):
        tally.fault("learners", codes)
    elif not all(torch.equal(found[name], whole[name]) for name in whole):
        tally.fault("learners", "another result")
    else:
        tally.note("learners", "one at a time, the same result")
