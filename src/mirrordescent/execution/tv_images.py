"""Fast runs of accelerated mirror descent on images with total variation."""

from typing import cast

import torch
from torch import Tensor

from mirrordescent import kernels
from mirrordescent.domains import WholeSpace
from mirrordescent.execution.registry import runner
from mirrordescent.methods.accelerated import AMD, AMDState
from mirrordescent.methods.means import Means
from mirrordescent.mirrors import Euclidean, MirrorMap, Stencil
from mirrordescent.oracles import Oracle, Rounded
from mirrordescent.problems.base import Problem
from mirrordescent.problems.pixels import Pixels
from mirrordescent.problems.tv import TVDenoising, TVInpainting
from mirrordescent.schedules import Number


def pixels_of(problem: Problem) -> Pixels | None:
    """Return the data of a problem for the kernels, or None if they cannot be used.

    Kernels are written for the objectives of these exact classes without an operator.
    """
    if type(problem) is not TVInpainting and type(problem) is not TVDenoising:
        return None
    if problem.operator is not None or not kernels.supports(problem.y):
        return None
    return problem.pixels


@runner(AMD)
def amd_run(method: AMD, problem: Problem, oracle: Oracle) -> "StencilRun | None":
    """Return a run of AMD with a stencil or no map, on gradients with rounded kinks."""
    pixels = pixels_of(problem)
    if pixels is None or type(oracle) is not Rounded:
        return None
    if type(method.mirror) is not Stencil and not _is_unconstrained_euclidean(method.mirror):
        return None
    if method.regulariser is not method.mirror:
        return None
    if method.storage != "primal" or method.returns != "x":
        return None
    return StencilRun(method, oracle, pixels)


def _is_unconstrained_euclidean(mirror: MirrorMap) -> bool:
    return type(mirror) is Euclidean and isinstance(mirror.primal_domain, WholeSpace)


class StencilRun:
    """Steps of AMD in the geometry of a stencil, or the Euclidean one, in one call of a C kernel.

    Args:
        method: AMD with a stencil or the Euclidean map, both as its map and as its regulariser.
        oracle: Oracle of the rounded gradients.
        pixels: Data of the total-variation problem.
    """

    def __init__(self, method: AMD, oracle: Rounded, pixels: Pixels) -> None:
        self.method = method
        self.oracle = oracle
        self.pixels = pixels

    def __call__(self, state: AMDState, steps: int) -> AMDState:
        return self._run(state, None, 1.0, steps)[0]

    @property
    def computes_means(self) -> bool:
        """Whether :meth:`with_means` exists for the problem.

        Bounds for a Huber function need the mean of the points, which the kernel does not compute.
        """
        return not self.pixels.huber

    def with_means(self, state: AMDState, means: Means, steps: int) -> tuple[AMDState, Means]:
        """Take steps, and include their gradients in the means.

        The kernel averages the gradients without their data term. At y the data term vanishes, so
        the means are those of gradients at y.
        """
        state, gradient = self._run(
            state, cast(Tensor, means.gradient), means.next_weights(steps), steps
        )
        return state, Means(means.n + steps, cast(Tensor, gradient), self.pixels.y)

    @torch.no_grad()
    def _run(
        self, state: AMDState, mean: Tensor | None, shares: Number, steps: int
    ) -> tuple[AMDState, Tensor | None]:
        first = state.k + 1
        method = self.method
        pixels = self.pixels
        t = method.t.sequence(first, steps)
        curvature = self.oracle.curvature.sequence(first, steps)
        side = method.mirror.side if isinstance(method.mirror, Stencil) else 0.0
        numbers = kernels.numbers(
            pixels.rounded(curvature),
            pixels.bound,
            pixels.fidelity,
            side,
            method.dual_weight.sequence(first, steps) * t,
            method.gamma.sequence(first, steps) * t,
            method.mixing.sequence(first + 1, steps),
            shares,
        )
        x, z, mean = kernels.amd_stencil(
            cast(Tensor, state.x),
            cast(Tensor, state.z),
            pixels.y,
            pixels.mask,
            mean,
            numbers,
            steps,
            isotropic=pixels.isotropic,
            coupled=pixels.coupled,
        )
        return AMDState(state.k + steps, z, x, x), mean
