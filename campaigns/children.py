"""Work in forked processes, which start warm and can be ended at any moment."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import mirrordescent as md
from mirrordescent.learn import Descent, Draw, ProblemFamily, Settings, Validation, learn
from mirrordescent.learn.families import generators
from mirrordescent.mirrors import Diagonal
from mirrordescent.restore import plan_restoration
from mirrordescent.restore.jobs import Jobs, RestorationSettings
from mirrordescent.restore.request import Request
from mirrordescent.schedules import Prefix

CRASHED = 70
"""Exit code of a child that ended with an unexpected error."""

EXPECTED_ERROR = 2
"""Exit code of a child that ended with an expected error."""


class Bowls(ProblemFamily):
    """½(x − c)ᵀA(x − c) with A = diag(1, 25) and random centres c: problems that cost nothing."""

    def draw(self, seeds: Tensor) -> Draw:
        centres = [torch.randn(2, generator=g, dtype=torch.float64) for g in generators(seeds)]
        start = torch.zeros(len(seeds), 2, dtype=torch.float64)
        curvature = torch.tensor([1.0, 25.0], dtype=torch.float64)
        return Draw(md.Quadratic(curvature, torch.stack(centres)), start, start[:, 0])

    def validation(self, count: int) -> Draw:
        return self.draw(torch.arange(count) + 10**6)


def train(folder: Path, callback: Callable[[int], object] | None = None) -> dict[str, Tensor]:
    """Learn a map on bowls, or resume learning; return the learned parameters.

    Args:
        folder: Run folder.
        callback: Function of the meta-step, called after each.
    """
    d = nn.Parameter(torch.ones(2, dtype=torch.float64))
    method = md.SMD(Diagonal(d), Prefix(torch.full((3,), 0.03, dtype=torch.float64)))
    settings = Settings(
        meta_steps=20,
        batch=4,
        horizon=3,
        optimiser=Descent(learning_rate=0.05),
        validation=Validation(every=5, batch=4),
        save_every=3,
    )
    learned = learn(Bowls(), method, settings, folder=folder, progress=False, callback=callback)
    return learned.method.state_dict()


def restore(images: Path, out: Path) -> None:
    """Denoise a folder of photographs."""
    jobs = Jobs(RestorationSettings(Request("denoise", weight=0.15), out), [images])
    for _ in jobs.run(plan_restoration("denoise", iterations=5), progress=False):
        pass


def equal_tensors(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Tell whether all tensors of the second dict are in the first, bit by bit."""
    return all(name in first and torch.equal(first[name], second[name]) for name in second)


def forked(work: Callable[[], object], end: int | None = None, after: float = 0.0) -> int:
    """Run a function in a forked process and return its exit code, as ``Popen.returncode``.

    The exit code is 2 after an expected error (OSError, MemoryError, ValueError), 70 after another
    error, 130 after an interrupt, and −n after the signal n.

    Args:
        work: Function to run.
        end: Signal to send to the child.
        after: Seconds to wait before the signal.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    child = os.fork()
    if child == 0:
        _run_and_exit(work, mask)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if end is not None:
        time.sleep(after)
        os.kill(child, end)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run_and_exit(work: Callable[[], object], mask: set[signal.Signals]) -> None:
    """Run a function and end the process; nothing of the parent may run in it afterwards."""
    code = CRASHED
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        warnings.simplefilter("ignore")
        work()
        code = 0
    except KeyboardInterrupt:
        code = 130
    except (OSError, MemoryError, ValueError):
        code = EXPECTED_ERROR
    except RuntimeError as error:
        if "allocate memory" in str(error):
            code = EXPECTED_ERROR
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
