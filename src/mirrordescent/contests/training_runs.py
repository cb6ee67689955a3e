"""Train the same networks on the same minibatches with different methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from mirrordescent.methods import Method
from mirrordescent.oracles import Oracle
from mirrordescent.problems.network_training import Networks, NetworkTraining
from mirrordescent.racing import TunableSolver, best_setting
from mirrordescent.report import Curve, Panel
from mirrordescent.solving import Snapshot, Solution, solve

PAPER_ADAM = 1e-2  # the paper's learning rate for Adam
LOSS = "training loss"
TRAIN_ACCURACY = "training accuracy"
TEST_ACCURACY = "test accuracy"
QUANTITIES = {
    LOSS: "cross-entropy on training data",
    TRAIN_ACCURACY: "share of training data classified rightly",
    TEST_ACCURACY: "share of test data classified rightly",
}


@dataclass(frozen=True)
class Training:
    """Networks to train, their gradients, and the test data.

    Args:
        problem: Training problem.
        networks: Parameters to start from.
        oracle: Oracle for the gradients.
        steps: Number of steps.
        looks: Approximate number of points of every curve.
        test_inputs: Test inputs (m, …), or (batch, m, …) if the tasks differ.
        test_targets: Labels of the test inputs.
        seed: Seed of the minibatches.
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

        A network that fails keeps the values that it had when the failure was noticed.
        """
        every = max(1, self.steps // self.looks)
        iterations: list[int] = []
        seconds: list[float] = []
        values: dict[str, list[Tensor]] = {quantity: [] for quantity in QUANTITIES}

        def look(at: Snapshot) -> None:
            iterations.append(at.k)
            seconds.append(at.seconds)
            values[LOSS].append(at.value.double())
            values[TRAIN_ACCURACY].append(self.problem.accuracy(at.x))
            values[TEST_ACCURACY].append(
                self.problem.accuracy(at.x, self.test_inputs, self.test_targets)
            )

        self._solve(method, callbacks=[look], check_every=every)
        planned = [*range(0, self.steps, every), self.steps]
        # A run ends early when all of its networks failed.
        for k in planned[len(iterations) :]:
            iterations.append(k)
            seconds.append(seconds[-1])
            for measured in values.values():
                measured.append(measured[-1])
        return {
            quantity: Curve(name, list(iterations), list(seconds), torch.stack(measured))
            for quantity, measured in values.items()
        }

    def tune(self, tunable: TunableSolver) -> float:
        """Return the setting of the grid with the smallest mean training loss at the end."""
        return best_setting(tunable.settings, lambda setting: self.loss(tunable.make(setting)))

    def loss(self, method: Method[Any]) -> float:
        """Return the mean training loss at the end, or infinity if a network failed."""
        return float(self.losses(method).mean())

    def losses(self, method: Method[Any]) -> Tensor:
        """Return the training losses at the end; the loss of a failed network is infinite."""
        # Evaluating the loss along the way would take longer than the steps.
        solution = self._solve(method, check_every=self.steps)
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
    """Gather the curves of several methods into one panel for every quantity."""
    by_quantity = {}
    for quantity in runs[0]:
        vertical: Literal["log", "linear"] = "log" if quantity == LOSS else "linear"
        curves = [run[quantity] for run in runs]
        by_quantity[quantity] = Panel(curves, QUANTITIES[quantity], against, ("linear", vertical))
    return by_quantity
