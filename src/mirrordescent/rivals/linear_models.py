"""Outside solvers of linear classifiers: liblinear and SAGA of scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from mirrordescent.domains import WholeSpace
from mirrordescent.problems.base import Problem
from mirrordescent.problems.composite import Composite
from mirrordescent.problems.linear_models import LogisticRegression
from mirrordescent.problems.terms import L1
from mirrordescent.rivals.registry import Rival, SolveTo, register
from mirrordescent.trees import Tree


def _parts(problem: Problem) -> tuple[LogisticRegression, Any, float] | None:
    """Return the logistic loss, the weights (batch,) of the penalty, and its norm, 1 or 2."""
    if isinstance(problem, LogisticRegression):
        ridge = float(problem.ridge.max())
        return (problem, np.array([ridge]), 2.0) if ridge > 0 else None
    if not isinstance(problem, Composite) or not isinstance(problem.domain, WholeSpace):
        return None
    terms = list(problem.parts)
    smooth = problem.smooth
    plain = len(terms) == 1 and type(terms[0]) is L1 and isinstance(smooth, LogisticRegression)
    if not plain or float(cast(LogisticRegression, smooth).ridge.max()) > 0:
        return None
    term = cast(L1, terms[0])
    if term.operator is not None or term.coupled or term.offset is not None:
        return None
    weights = torch.as_tensor(term.scaled_weight).double().reshape(-1).cpu().numpy()
    return cast(LogisticRegression, smooth), weights, 1.0


def _prepare(name: str) -> Any:
    def prepare(problem: Problem, x0: Tree) -> SolveTo | None:
        parts = _parts(problem)
        if parts is None or not isinstance(x0, Tensor):
            return None
        loss, weights, norm = parts
        signed = loss.signed.double().cpu().numpy()
        return lambda tolerance: _fit(name, signed, weights, norm, x0, tolerance)

    return prepare


def _fit(name: str, signed: Any, weights: Any, norm: float, x0: Tensor, tolerance: float) -> Tensor:
    """Fit every problem: C = 1/(nλ), with labels alternating so that both classes occur."""
    from sklearn.linear_model import LogisticRegression as Model

    solutions = []
    for i in range(len(x0)):
        rows = signed if signed.ndim == 2 else signed[i]
        labels = np.where(np.arange(len(rows)) % 2 == 0, 1.0, -1.0)
        weight = weights[i % len(weights)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = Model(
                C=1 / (len(rows) * weight),
                l1_ratio=1.0 if norm == 1 else 0.0,
                penalty="l1" if norm == 1 else "l2",
                solver=name,
                fit_intercept=False,
                tol=tolerance,
                max_iter=2000,
            )
            model.fit(rows * labels[:, None], labels)
        solutions.append(torch.from_numpy(model.coef_[0]))
    return torch.stack(solutions).to(x0)


register(Rival("liblinear", _prepare("liblinear"), "sklearn"))
register(Rival("SAGA", _prepare("saga"), "sklearn"))
