"""Families of networks to train: random initialisations on one data set."""

from torch import Tensor, nn

from mirrordescent.data.moons import half_circles
from mirrordescent.learn.families import Draw, ProblemFamily
from mirrordescent.problems.network_training import NetworkTraining


class NetworkFamily(ProblemFamily):
    """One architecture on one data set, from PyTorch's random initialisation.

    Minibatches are the oracle's business: ``learn(family, method, oracle=Minibatch(500))``. To
    learn in a reasonable time, measure the loss on ``evaluation`` data points instead of all of
    them.

    Args:
        model: the architecture. inputs, targets: (n, …) and (n,); see
            :class:`~mirrordescent.problems.network_training.NetworkTraining`.
        evaluation: how many data points the loss is measured on, the first ones; all by default.
    """

    def __init__(
        self, model: nn.Module, inputs: Tensor, targets: Tensor, *, evaluation: int | None = None
    ) -> None:
        self.problem = NetworkTraining(model, inputs, targets, evaluation=evaluation)

    def draw(self, seeds: Tensor) -> Draw:
        return Draw(self.problem, self.problem.initial(seeds))


def moons_family(points: int = 500, noise: float = 0.05, seed: int = 0) -> NetworkFamily:
    """Return networks 2 → 50 → 1 that tell two interleaved half circles apart."""
    inputs, targets = half_circles(points, noise, seed)
    model = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 1))
    return NetworkFamily(model, inputs, targets)
