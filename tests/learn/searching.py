"""A search for a solver, as a script for ``torchrun``: ``searching.py OUT`` writes what every
process has found.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators


class Bowls(ProblemFamily):
    """Quadratics of one geometry."""

    def draw(self, seeds):
        centres = torch.stack(
            [torch.randn(3, generator=generator) for generator in generators(seeds)]
        )
        problem = md.Quadratic(torch.tensor([1.0, 5.0, 10.0]), centres)
        return Draw(problem, problem.start())


if __name__ == "__main__":
    out = Path(sys.argv[1])
    found = md.auto(Bowls(), name="bowls", minutes=0.02, out=out, batch=4, accuracy=0.1)
    learned = [each for each in found.contestants if each.kind != "classical"]
    record = {
        "words": found.words,
        "seconds": {each.name: each.rehearsal.seconds for each in found.contestants},
        "numbers": [float(p.double().sum()) for each in learned for p in each.method.parameters()],
    }
    (out / f"found-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(record))
    os._exit(0)  # threads of torch sometimes abort a process that is taken down in the usual way
