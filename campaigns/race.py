"""Concurrent access of many processes to cached references, run folders and entries."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import mirrordescent as md
from campaigns.children import CRASHED, equal_tensors, train
from campaigns.kill import damaged_files
from campaigns.tally import Tally
from mirrordescent import TVDenoising, certify, zoo
from mirrordescent.learn.checkpoint import RunBusy
from mirrordescent.mirrors import Diagonal

PROCESSES = 6
BUSY = 3
"""Exit code of a process that was refused because another one uses the run folder."""


def run_concurrently(*works: Callable[[], object]) -> list[int]:
    """Run functions in processes at the same time; return their exit codes."""
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            code = CRASHED
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
    """Run the campaign."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = train(folder / "uninterrupted")
        for number in tally.cases():
            os.environ["MIRRORDESCENT_CACHE"] = str(folder / f"cache{number}")
            _entries(tally, folder)
            _references(tally, number)
            _learners(tally, folder / "run", expected)


def _entries(tally: Tally, folder: Path) -> None:
    """Two processes overwrite an entry while three read it: readers see complete entries."""
    methods = [md.SMD(Diagonal(torch.full((n,), float(n))), 0.1) for n in (2, 50)]
    path = zoo.save(methods[0], folder / "entry")

    def write() -> None:
        for i in range(20):
            zoo.save(methods[i % 2], folder / "entry")

    def read() -> None:
        for _ in range(40):
            d = zoo.load(path).mirror.d
            assert bool((d == len(d)).all())

    codes = run_concurrently(write, write, read, read, read)
    tally.expect("entries", not any(codes), "always whole", codes)


def _references(tally: Tally, number: int) -> None:
    """Processes that certify the same problem get the same bound."""
    problem = TVDenoising(torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(number)))
    lower = certify(problem, 1e-3, cache=False).lower

    def compare() -> None:
        assert torch.equal(certify(problem, 1e-3).lower, lower)

    codes = run_concurrently(*[compare] * PROCESSES)
    tally.expect("references", not any(codes), "the same for all", codes)


def _learners(tally: Tally, run: Path, expected: dict[str, torch.Tensor]) -> None:
    """Of processes that learn in one folder, one succeeds at a time and the others are refused."""
    shutil.rmtree(run, ignore_errors=True)
    codes = run_concurrently(*[lambda: train(run)] * PROCESSES)
    learned = train(run)
    if set(codes) - {0, BUSY} or 0 not in codes or damaged_files(run):
        tally.fault("learners", codes)
        return
    same = equal_tensors(learned, expected)
    tally.expect("learners", same, "one at a time, the same result", "another result")
