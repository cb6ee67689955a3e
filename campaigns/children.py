"""Work in forked processes, which start warm and can be ended at any moment; and the work that is
tried on.
"""

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
from mirrordescent.schedules import Prefix


class Bowls(ProblemFamily):
    """½(x−c)ᵀA(x−c) with one A = diag(1, 25) and random centres: problems that take no time."""

    def draw(self, seeds: Tensor) -> Draw:
        centres = torch.stack(
            [torch.randn(2, generator=each, dtype=torch.float64) for each in generators(seeds)]
        )
        start = torch.zeros(len(seeds), 2, dtype=torch.float64)
        return Draw(
            md.Quadratic(torch.tensor([1.0, 25.0], dtype=torch.float64), centres),
            start,
            start[:, 0],
        )

    def validation(self, count: int) -> Draw:
        return self.draw(torch.arange(count) + 10**6)


def train(folder: Path, callback: Callable[[int], object] | None = None) -> dict[str, Tensor]:
    """Learn a map on bowls, or go on learning it."""
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
    for _ in Jobs(RestorationSettings("denoise", out, 0.15), [images]).run(
        plan_restoration("denoise", iterations=5), progress=False
    ):
        pass


def forked(work: Callable[[], object], end: int | None = None, after: float = 0.0) -> int:
    """Do something in a child, which gets a signal after a while; return how it ended, as
    ``Popen.returncode`` does.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    child = os.fork()
    if child == 0:
        code = 70
        try:  # from the very first: nothing of the parent's may be left by a child
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            warnings.simplefilter("ignore")
            work()
            code = 0
        except KeyboardInterrupt:
            code = 130
        except (OSError, MemoryError, ValueError):
            code = 2
        except RuntimeError as error:
            code = 2 if "allocate memory" in str(error) else 70
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if end is not None:
        time.sleep(after)
        os.kill(child, end)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
