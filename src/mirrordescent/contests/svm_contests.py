"""Support vector machines on features of the digits four and nine."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

from mirrordescent import data
from mirrordescent.contests.contest import Contest, recorded_iterations
from mirrordescent.data import Features
from mirrordescent.problems import SVM
from mirrordescent.references import certify

TOLERANCE = 1e-9  # of the certified optimum: methods come within 1e-7 of it


def load_features(directory: Path | None, bundled: bool = False) -> tuple[Features, str]:
    """Return features of fours and nines, and the name of their source.

    The source is MNIST, or the small digits of scikit-learn if MNIST is missing or ``bundled`` is
    true.
    """
    if not bundled:
        with contextlib.suppress(data.DataMissing):
            return data.four_nine_features("mnist", directory=directory), "mnist"
    return data.four_nine_features("digits"), "digits"


def machine(features: Features) -> SVM:
    """Return the training problem of a support vector machine, in double precision."""
    return SVM(features.train, features.train_labels).double()


def starts(features: Features, count: int, iterations: int, seed: int) -> Contest:
    """Return a contest on one machine from several starts (w, b) ~ N(0, I)."""
    problem = machine(features)
    generator = torch.Generator().manual_seed(seed)
    x0 = torch.randn(count, problem.signed.shape[-1], generator=generator, dtype=torch.float64)
    optimum = certify(problem, TOLERANCE)
    width = float((optimum.value - optimum.lower).mean())
    recorded = recorded_iterations(iterations)
    return Contest(problem, x0, optimum.lower, iterations, recorded, width=width)
