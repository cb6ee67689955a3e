"""Problems of a family on another device."""

from __future__ import annotations

import torch
from torch import Tensor

from mirrordescent.learn.families import Draw, ProblemFamily
from mirrordescent.trees import tree_map


class OnDevice(ProblemFamily):
    """The problems of a family, drawn where it draws them and then moved."""

    def __init__(self, family: ProblemFamily, device: str | torch.device) -> None:
        self.family, self.device = family, usable(device)

    def draw(self, seeds: Tensor) -> Draw:
        """Move the family's problems."""
        return self._moved(self.family.draw(seeds))

    def validation(self, count: int) -> Draw:
        """Move the family's held-out problems."""
        return self._moved(self.family.validation(count))

    def _moved(self, draw: Draw) -> Draw:
        lower = None if draw.lower is None else draw.lower.to(self.device)
        x0 = tree_map(lambda leaf: leaf.to(self.device), draw.x0)
        return Draw(draw.problem.to(self.device), x0, lower)


def usable(device: str | torch.device) -> torch.device:
    """Return a device, or say that it cannot be used."""
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"the device {device} cannot be used here: {str(error).splitlines()[0]}") from error
    return chosen
