"""Tuning, runs that are kept, and claims about a geometry for networks of several kinds."""

from __future__ import annotations

import math

import pytest

from mirrordescent.recipes.architectures import small_cnn
from mirrordescent.recipes.training_tasks import End
from mirrordescent_experiments import ledger as ledgers
from mirrordescent_experiments.contestants import BETAS, TunableOptimiser, adamw, adamw_grid
from mirrordescent_experiments.ledger import Ledger, best_of, written
from mirrordescent_experiments.network_geometry import log_ratio, lower, reaches


@pytest.mark.parametrize(("best", "asked"), [(2.0, 3), (16.0, 6), (0.25, 6), (4.0, 4)])
def test_a_grid_goes_on_where_its_best_is_an_end(best, asked):
    """Beyond an end by factors as long as the loss falls; not at all from a best inside."""
    seen = set()

    def loss(setting):
        seen.add(setting)
        return abs(math.log(setting[0] / best))

    found = best_of([(1.0, "linear"), (2.0, "linear"), (4.0, "linear")], loss, 2.0)
    assert found == (best, "linear")
    assert len(seen) == asked


def test_adamw_is_tuned_over_its_second_beta_too():
    settings = adamw_grid((1e-3, 1e-2), ("cosine",))
    assert {setting[2] for setting in settings} == set(BETAS)
    optimiser, _ = adamw(*settings[1])(small_cnn(), 10)
    assert optimiser.defaults["betas"][1] == settings[1][2] == BETAS[1]
    assert written(settings[1]) == "0.001 cosine 0.95"


class Counted:
    """A task that counts how often it is run."""

    name = "counted"
    steps = 5
    runs = 0

    def train(self, make, seed, directory, steps):
        self.runs += 1
        return End(abs(make - 9.0) + 0.1 * steps, 2.0, 0.5, 1.0)


def test_runs_of_rivals_outlive_the_entry(tmp_path, monkeypatch):
    task = Counted()
    path = tmp_path / "runs.json"
    settings = [(1.0, "linear"), (3.0, "linear")]
    ours = TunableOptimiser("ours", lambda rate, shape: rate, settings, of_entry=True)
    theirs = TunableOptimiser("theirs", lambda rate, shape: rate, settings)

    def tuned(stamp):
        monkeypatch.setattr(ledgers, "_stamp", lambda: stamp)
        before = task.runs
        ledger = Ledger(path, None, lambda line: None)
        assert ledger.tuned(task, ours) == ledger.tuned(task, theirs) == (9.0, "linear")
        return task.runs - before

    assert tuned("first") == 8  # 1, 3, 9 and 27, for both
    assert tuned("first") == 0
    assert tuned("second") == 4
    ledger = Ledger(path, None, lambda line: None)
    assert ledger.run(task, theirs, settings[0], ledgers.TUNING_SEED).loss == pytest.approx(8.5)
    assert ledger.tuned(task, theirs, 50, [(9.0, "linear")]) == (9.0, "linear")
    assert ledger.run(task, theirs, (9.0, "linear"), ledgers.TUNING_SEED, 50).loss == pytest.approx(
        5.0
    )


def test_a_mean_log_loss_is_judged_with_its_uncertainty():
    theirs = [[1.0, 1.1, 0.9], [2.0, 2.1, 2.2]]

    def judged(factors):
        return lower(
            "ours is lower",
            log_ratio([[f * x for f, x in zip(factors, y, strict=True)] for y in theirs], theirs),
        )

    assert judged([0.5, 0.55, 0.52]).holds is True
    assert judged([2.0, 2.1, 1.9]).holds is False
    assert judged([0.5, 2.0, 1.1]).holds is None
    one = lower("", log_ratio([[0.5]], [[1.0]]))
    assert one.holds is None
    assert "one network" in one.measured
    found = log_ratio([[0.5, 0.5], [2.0, 2.0]], [[1.0, 1.0], [1.0, 1.0]])
    assert found.numbers == pytest.approx((0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("losses", "shares", "holds"),
    [
        ([0.030, 0.031, 0.032], [0.98, 0.981, 0.982], True),
        ([0.030, 0.031, 0.032], [0.95, 0.951, 0.952], False),
        ([0.050, 0.051, 0.052], [0.98, 0.981, 0.982], False),
        ([0.020, 0.031, 0.042], [0.98, 0.981, 0.982], None),
    ],
)
def test_reaching_two_numbers_needs_both(losses, shares, holds):
    assert reaches("MLP", losses, shares, 0.034, 0.976).holds is holds
