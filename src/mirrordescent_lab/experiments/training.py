"""Training networks with different methods: the same networks and minibatches, loss and accuracy
along the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from mirrordescent.methods import Method
from mirrordescent.oracles import Oracle
from mirrordescent.problems.network_training import Networks, NetworkTraining
from mirrordescent.solving import Snapshot, Solution, solve
from mirrordescent_lab.experiments.contest import Tunable
from mirrordescent_lab.experiments.result import Claim, Curve, Panel
from mirrordescent_lab.intervals import paired

LOSS = "training loss"
TRAIN_ACCURACY = "training accuracy"
TEST_ACCURACY = "test accuracy"
# the loss of a network that has none, and no loss counts for more: guessing among ten has 2.3
FAILED = 10.0
QUANTITIES = {
    LOSS: "cross-entropy on training data",
    TRAIN_ACCURACY: "share of training data classified rightly",
    TEST_ACCURACY: "share of test data classified rightly",
}


@dataclass(frozen=True)
class Training:
    """Networks to train, how gradients are asked for, and the test data: (m, …), or (batch, m, …)
    if tasks differ.
    """

    problem: NetworkTraining
    networks: Networks
    oracle: Oracle
    steps: int
    looks: int
    test_inputs: Tensor
    test_targets: Tensor
    seed: int = 0

    def run(self, name: str, method: Method[Any]) -> dict[str, Curve]:
        """Train all networks with one method, and return a curve of every quantity.

        A network that fails keeps the values it had when the failure was noticed.
        """
        every = max(1, self.steps // self.looks)
        seen: list[tuple[int, float, Tensor, Tensor, Tensor]] = []

        def look(at: Snapshot) -> None:
            training = self.problem.accuracy(at.x)
            test = self.problem.accuracy(at.x, self.test_inputs, self.test_targets)
            seen.append((at.k, at.seconds, at.value.double(), training, test))

        self._solve(method, callbacks=[look], check_every=every)
        planned = [*range(0, self.steps, every), self.steps]
        seen += [
            (k, *seen[-1][1:]) for k in planned[len(seen) :]
        ]  # a run ends early when all its networks failed
        iterations, seconds, *quantities = zip(*seen, strict=True)
        return {
            quantity: Curve(
                name, list(iterations), list(seconds), torch.stack(cast(tuple[Tensor, ...], values))
            )
            for quantity, values in zip(QUANTITIES, quantities, strict=True)
        }

    def tune(self, tunable: Tunable) -> float:
        """Return the setting with the smallest mean training loss at the end."""
        return min(tunable.grid, key=lambda setting: self.loss(tunable.make(setting)))

    def loss(self, method: Method[Any]) -> float:
        """Return the mean training loss at the end, infinite if a network failed."""
        return float(self.losses(method).mean())

    def losses(self, method: Method[Any]) -> Tensor:
        """Return the training losses at the end, infinite for networks that failed."""
        solution = self._solve(
            method, check_every=self.steps
        )  # looking on the way would take longer than the steps
        failed = torch.tensor([status.failed for status in solution.statuses])
        return solution.value.masked_fill(failed.to(solution.value.device), torch.inf)

    def _solve(self, method: Method[Any], **options: Any) -> Solution:
        return solve(
            self.problem,
            method,
            self.networks,
            iterations=self.steps,
            oracle=self.oracle,
            generator=torch.Generator().manual_seed(self.seed),
            progress=False,
            **options,
        )


def panels(
    runs: Sequence[Mapping[str, Curve]], against: Literal["iterations", "seconds"] = "iterations"
) -> dict[str, Panel]:
    """Gather the curves of several methods by the quantities that were measured."""
    made = {}
    for quantity in runs[0]:
        vertical: Literal["log", "linear"] = "log" if quantity == LOSS else "linear"
        made[quantity] = Panel(
            [run[quantity] for run in runs], QUANTITIES[quantity], against, ("linear", vertical)
        )
    return made


def at_most(panel: Panel, name: str, factor: float, rival: str) -> Claim:
    """Whether a method's mean at the end is at most a factor of a rival's, over the same
    networks.
    """
    ours, theirs = (_ends(panel, each) for each in (name, rival))
    relation = "below" if factor == 1 else f"at most {factor:.3g} times"
    return _judged(
        f"{panel.quantity}: {name} ends {relation} {rival}",
        factor * theirs - ours,
        panel,
        name,
        rival,
    )


def at_least(panel: Panel, name: str, rival: str, points: float) -> Claim:
    """Whether a method's mean share at the end is at least a rival's, minus a number of points."""
    ours, theirs = (_ends(panel, each) for each in (name, rival))
    statement = f"{panel.quantity}: {name} ends at least at {rival} − {points:g} points"
    return _judged(statement, ours - theirs + points / 100, panel, name, rival)


def _ends(panel: Panel, name: str) -> Tensor:
    return panel[name].values[-1].double().nan_to_num(nan=FAILED).clamp(max=FAILED)


def _judged(statement: str, margins: Tensor, panel: Panel, name: str, rival: str) -> Claim:
    """Judge by the mean margin over networks, with its interval."""
    margin = paired(margins)
    within = f"margin {margin.mean:.2g} [{margin.low:.2g}, {margin.high:.2g}]"
    return Claim.by(
        statement,
        margin.low,
        margin.high,
        f"{_with_error(panel, name)}, {_with_error(panel, rival)}; {within}",
    )


def _with_error(panel: Panel, name: str) -> str:
    """Write a mean at the end with its standard error over the runs."""
    values = panel[name].values[-1].double()
    return f"{panel[name].name} {float(values.mean()):.4g} ± {float(values.std() / len(values) ** 0.5):.1g}"
