"""Averages of weights in runs of unknown length, as in schedule-free learning.

An optimiser steps the sequence z. Gradients are taken at y, between z and the average x of z:

    z⁺ = z − t d(∇f(y)),    x⁺ = x + c(z⁺ − x),    y⁺ = βx⁺ + (1 − β)z⁺

The parameters are y while training, and x in evaluation. Only z is stored besides them, because x
is a combination of y and z.

Reference: Defazio et al., The Road Less Scheduled, NeurIPS 2024.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mirrordescent.execution.tensors import Tensors

INTERPOLATION = 0.5
"""β, the weight of the average in the point of the next gradient."""

EXPONENT = 3.0
"""p of the weights kᵖ of iterates: about the last 1/(p + 1) of a run counts."""


def averaging_share(k: int, remaining: int | None = None) -> float:
    """Return c of step k, with which the weights of iterates are proportional to kᵖ.

    Args:
        k: Number of the step, counted from 1.
        remaining: Number of steps after this one if it is known. The average then covers at most
            about the last ``remaining`` + 1 iterates, and after the last step it equals the
            iterate.
    """
    share = (EXPONENT + 1) / (k + EXPONENT)
    return share if remaining is None else max(share, 1 / (remaining + 1))


class AveragedWeights:
    """The sequence z of each parameter that was stepped.

    If others change a parameter between two steps, its z and x restart at the new value. Such
    changes are recognised by the version of the tensor; a change of ``p.data`` has none.
    """

    def __init__(self) -> None:
        self.z: dict[Tensor, Tensor] = {}
        self._versions: dict[Tensor, int] = {}

    def __getstate__(self) -> dict[str, dict[Tensor, Tensor]]:
        return {"z": self.z}

    def __setstate__(self, state: dict[str, dict[Tensor, Tensor]]) -> None:
        self.z = state["z"]
        self._versions = {}

    def begin(self, parameters: Tensors, y: Tensors) -> tuple[Tensors, Tensors]:
        """Return z, to be stepped in place, and βx.

        Args:
            parameters: Parameters, by which z is stored.
            y: Memory of the parameters, or of their local parts.
        """
        z: Tensors = []
        for p, value in zip(parameters, y, strict=True):
            if p not in self.z:
                self.z[p] = value.clone()
            elif self._versions.get(p, p._version) != p._version:
                self.z[p].copy_(value)
            z.append(self.z[p])
        return z, list(torch._foreach_sub(y, z, alpha=1 - INTERPOLATION))

    def end(
        self, parameters: Tensors, y: Tensors, z: Tensors, scaled: Tensors, share: float
    ) -> None:
        """Set y after a step of z.

        Args:
            parameters: Parameters.
            y: Memory of the parameters, or of their local parts.
            z: z after the step.
            scaled: βx before the step.
            share: c.
        """
        torch._foreach_copy_(y, z)
        torch._foreach_mul_(y, INTERPOLATION * share + 1 - INTERPOLATION)
        torch._foreach_add_(y, scaled, alpha=1 - share)
        self.record(parameters)

    def show_average(self, parameters: Tensors, y: Tensors) -> None:
        """Replace y by x."""
        known = [
            (p, value, self.z[p]) for p, value in zip(parameters, y, strict=True) if p in self.z
        ]
        for _, value, z in known:
            value.sub_(z, alpha=1 - INTERPOLATION).div_(INTERPOLATION)
        self.record([p for p, _, _ in known])

    def hide_average(self, parameters: Tensors, x: Tensors) -> None:
        """Replace x by y."""
        known = [
            (p, value, self.z[p]) for p, value in zip(parameters, x, strict=True) if p in self.z
        ]
        for _, value, z in known:
            value.mul_(INTERPOLATION).add_(z, alpha=1 - INTERPOLATION)
        self.record([p for p, _, _ in known])

    def record(self, parameters: Tensors) -> None:
        """Remember the versions of parameters, which changes by others increase."""
        for p in parameters:
            self._versions[p] = p._version

    def forget_versions(self) -> None:
        """Accept the present values of all parameters as those of the last step."""
        self._versions.clear()
