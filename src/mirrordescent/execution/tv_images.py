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

BLOCK = 32
"""Number of steps for which schedules are evaluated at once."""

SHARE = kernels.AMD_COLUMNS.index("share")
"""Column of the weights of gradients in means."""


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
        self._block: tuple[range, Tensor] | None = None

    def __call__(self, state: AMDState, steps: int) -> AMDState:
        return self._run(state, None, None, steps)[0]

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
        self, state: AMDState, mean: Tensor | None, shares: Tensor | None, steps: int
    ) -> tuple[AMDState, Tensor | None]:
        pixels = self.pixels
        numbers = self._numbers(state.k + 1, steps)
        if shares is not None:
            numbers = numbers.clone()
            numbers[..., SHARE] = shares.reshape(-1, 1)
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

    def _numbers(self, first: int, steps: int) -> Tensor:
        """Return the table of numbers of some steps, with a share of 1.

        Schedules are evaluated for a block of steps at once, since a call for a few of them takes
        as long as steps on a small image.
        """
        block = self._block
        if block is None or first not in block[0] or first + steps - 1 not in block[0]:
            counts = range(first, first + max(steps, BLOCK))
            block = counts, self._table(first, len(counts))
            self._block = block
        start = first - block[0].start
        return block[1][start : start + steps]

    def _table(self, first: int, steps: int) -> Tensor:
        method = self.method
        pixels = self.pixels
        t = method.t.sequence(first, steps)
        curvature = self.oracle.curvature.sequence(first, steps)
        side = method.mirror.side if isinstance(method.mirror, Stencil) else 0.0
        table = kernels.numbers(
            pixels.rounded(curvature),
            pixels.bound,
            pixels.fidelity,
            side,
            method.dual_weight.sequence(first, steps) * t,
            method.gamma.sequence(first, steps) * t,
            method.mixing.sequence(first + 1, steps),
            1.0,
        )
        return table.expand(steps, -1, -1)
