"""The objective, against its formula."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import MD, Quadratic, solve
from mirrordescent.learn import Draw, Objective
from mirrordescent.mirrors import MirrorMap
from mirrordescent.schedules import Prefix
from mirrordescent.trees import sum_per_sample


class Halfway(MirrorMap):
    """∇ψ(x) = 2x with the wrong inverse y/4: inconsistency ‖x/2‖."""

    exact = False

    def _to_dual(self, x):
        return 2 * x

    def _to_primal(self, y):
        return y / 4

    def inconsistency(self, x, norm="l1"):
        return sum_per_sample((x / 2).abs()) if norm == "l1" else (x / 2).flatten(1).norm(dim=1)


def setting(lower=None):
    problem = Quadratic(
        torch.tensor([1.0, 2.0], dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64)
    )
    x0 = torch.tensor([[0.0, 4.0]] * 3, dtype=torch.float64)
    method = MD(Halfway(), Prefix(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)))
    answers = []
    solution = solve(
        problem,
        method,
        x0,
        iterations=3,
        check_every=1,
        callbacks=[lambda look: answers.append(look.x)],
    )
    return method, Draw(problem, x0, lower), solution.trace.values[1:], answers


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("sum", lambda v: v.sum(0)),
        ("last", lambda v: v[-1]),
        ("log_value", lambda v: v.log().sum(0)),
        ("log_gap", lambda v: (v - 0.1).log().sum(0)),
    ],
)
def test_weights(weights, expected):
    method, draw, values, _ = setting(torch.full((3,), 0.1, dtype=torch.float64))
    losses, reported = Objective(weights=weights, penalty=0.0).losses(method, draw, 3, 0)
    torch.testing.assert_close(losses.detach(), expected(values))
    torch.testing.assert_close(reported, values)


@pytest.mark.parametrize(("points", "chosen"), [("ends", [0, 3]), ("all", [0, 1, 2, 3])])
@pytest.mark.parametrize("norm", ["l1", "l2", "mean"])
def test_penalty(points, chosen, norm):
    method, draw, values, answers = setting()
    objective = Objective(
        penalty=2.0, penalty_growth=1.1, penalty_every=10, penalty_points=points, penalty_norm=norm
    )
    losses, _ = objective.losses(method, draw, 3, meta_step=25)
    inconsistency = sum(method.mirror.inconsistency(answers[k], norm) for k in chosen)
    torch.testing.assert_close(losses.detach(), values.sum(0) + 2.0 * 1.1**2 * inconsistency)


def test_mistakes_are_named():
    method, draw, _, _ = setting()
    with pytest.raises(ValueError, match="use a Pooled family"):
        Objective(weights="log_gap").losses(method, draw, 3, 0)
    for bad in (
        {"weights": "best"},
        {"penalty_points": "some"},
        {"penalty_norm": "l3"},
        {"differentiation": "full"},
    ):
        with pytest.raises(ValueError, match="must be one of"):
            Objective(**bad)
    with pytest.raises(ValueError, match="penalty"):
        Objective(penalty=-1)
