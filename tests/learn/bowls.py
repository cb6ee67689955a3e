"""A tiny family whose best geometry is known: ½(x−c)ᵀA(x−c) with one A = diag(1, 25) and random
centres.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import mirrordescent as md
from mirrordescent.learn import Descent, Draw, ProblemFamily, Settings, Validation, learn
from mirrordescent.learn.families import generators
from mirrordescent.mirrors import Diagonal
from mirrordescent.schedules import Prefix

CURVATURE = torch.tensor([1.0, 25.0], dtype=torch.float64)


class Bowls(ProblemFamily):
    def draw(self, seeds):
        centres = [
            torch.randn(2, generator=generator, dtype=torch.float64)
            for generator in generators(seeds)
        ]
        problem = md.Quadratic(CURVATURE, torch.stack(centres))
        return Draw(
            problem,
            torch.zeros(len(seeds), 2, dtype=torch.float64),
            torch.zeros(len(seeds), dtype=torch.float64),
        )

    def validation(self, count):
        return self.draw(torch.arange(count) + 10**6)


def untrained():
    d = nn.Parameter(torch.ones(2, dtype=torch.float64))
    return md.SMD(Diagonal(d), Prefix(torch.full((3,), 0.03, dtype=torch.float64)))


def train(folder, steps=30, **options):
    """Also a script: ``bowls.py FOLDER OUT [KILL_AT]`` trains, dies at a meta-step if told to, and
    saves the result.
    """
    method = untrained()
    settings = Settings(
        meta_steps=steps,
        batch=4,
        horizon=3,
        optimiser=Descent(learning_rate=0.05),
        validation=Validation(every=5, batch=4),
        save_every=4,
    )
    return learn(Bowls(), method, settings, folder=folder, progress=False, **options)


if __name__ == "__main__":
    import os
    import signal

    from safetensors.torch import save_file

    folder, out, *kill_at = sys.argv[1:]

    def die(step):
        if kill_at and step == int(kill_at[0]):
            os.kill(os.getpid(), signal.SIGKILL)

    learned = train(folder, callback=die)
    if int(os.environ.get("RANK", 0)) == 0:
        save_file(learned.method.state_dict(), out)
    os._exit(0)  # threads of torch sometimes abort a process that is taken down in the usual way
