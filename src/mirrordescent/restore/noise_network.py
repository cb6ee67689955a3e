"""A small network that estimates the noise of a photograph from its features."""

import torch
from torch import Tensor, nn

from mirrordescent._internal.checks import require_positive
from mirrordescent.parts import Part
from mirrordescent.restore.noise_features import COUNT

FLOOR = 0.003  # noise that every photograph has, such as that of rounding to bytes
RANGE = 4.0  # standardised features are clipped to ±RANGE
TYPICAL = 0.05  # noise of which the network estimates the ratio


class NoiseNetwork(Part, nn.Module):
    """log √(σ² + ε²) and its uncertainty s, as a network of standardised features.

    The features are standardised by their means and deviations over the training photographs.
    Features that an image does not have (NaN) are replaced by their means. Two hidden layers with
    tanh follow. The network is learned by the likelihood of the Laplace distribution,

    .. code-block:: none

        s + |log √(σ² + ε²) − m| e⁻ˢ

    so e^s is the expected error of m.

    Args:
        width: Number of units of a hidden layer.
    """

    kind = "estimator"

    means: Tensor
    deviations: Tensor

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        require_positive(width=width)
        self.width = width
        self.register_buffer("means", torch.zeros(COUNT))
        self.register_buffer("deviations", torch.ones(COUNT))
        self.layers = nn.Sequential(
            nn.Linear(COUNT, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, 2),
        )

    def standardise(self, features: Tensor) -> None:
        """Set means and deviations to those of training photographs, (count, COUNT)."""
        self.means.copy_(features.nanmean(0).nan_to_num(0.0))
        squares = (features - self.means).square().nanmean(0)
        self.deviations.copy_(squares.nan_to_num(1.0).sqrt().clamp(min=1e-3))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return log √(σ² + ε²) and the logarithm s of its expected error, (batch,) each."""
        inputs = ((features - self.means) / self.deviations).nan_to_num(0.0).clamp(-RANGE, RANGE)
        ratio, error = self.layers(inputs).unbind(1)
        typical = torch.tensor(TYPICAL).log().to(ratio)
        return ratio + typical, error.clamp(-4.0, 2.0)
