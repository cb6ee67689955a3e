"""Families of networks to train: random initialisations on one data set."""

from torch import Tensor, nn

from mirrordescent.data.moons import half_circles
from mirrordescent.learn.families import Draw, ProblemFamily
from mirrordescent.problems.network_training import NetworkTraining


class NetworkFamily(ProblemFamily):
    """One architecture on one data set, from PyTorch's random initialisations.

    The oracle chooses minibatches: ``learn(family, method, oracle=Minibatch(500))``. To save time,
    the loss can be measured on the first ``evaluation`` data points only.

    Args:
        model: Architecture.
        inputs: Data points (n, …); see
            :class:`~mirrordescent.problems.network_training.NetworkTraining`.
        targets: Labels (n,).
        evaluation: Number of data points on which the loss is measured. The default is all.
    """

    def __init__(
        self, model: nn.Module, inputs: Tensor, targets: Tensor, *, evaluation: int | None = None
    ) -> None:
        self.problem = NetworkTraining(model, inputs, targets, evaluation=evaluation)

    def draw(self, seeds: Tensor) -> Draw:
        return Draw(self.problem, self.problem.initial(seeds))


def moons_family(points: int = 500, noise: float = 0.05, seed: int = 0) -> NetworkFamily:
    """Return networks 2 → 50 → 1 that classify two interleaved half circles.

    Args:
        points: Number of data points.
        noise: Standard deviation of the noise.
        seed: Seed for the data points.
    """
    inputs, targets = half_circles(points, noise, seed)
    model = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 1))
    return NetworkFamily(model, inputs, targets)
