"""Fast runs of primal-dual methods on images with total variation."""

from typing import NamedTuple, cast

from torch import Tensor

from mirrordescent import kernels
from mirrordescent.execution.registry import runner
from mirrordescent.execution.tv_images import pixels_of
from mirrordescent.methods.primal_dual import (
    PDHG,
    CondatVu,
    DualFISTA,
    DualFISTAState,
    PDHGState,
    Relaxed,
)
from mirrordescent.methods.scheduled import ScheduledPrimalDual, ScheduledState
from mirrordescent.mirrors import MirrorMap, Stencil
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.problems.pixels import Pixels
from mirrordescent.schedules import Number, Schedule
from mirrordescent.trees import Tree


class StepNumbers(NamedTuple):
    """Numbers of the steps of :class:`PixelRun`.

    τ, c, b and σ of its formula, a quarter of the damping of the stencil, ρ, a and m. Each is a
    number, or a table of steps and samples.
    """

    tau: Number
    pull: Number
    shift: Number
    sigma: Number
    side: Number = 0.0
    relaxation: Number = 1.0
    ahead: Number = 1.0
    momentum: Number = 0.0

    def table(self, pixels: Pixels) -> Tensor:
        """Return the numbers in the order of the kernel."""
        return kernels.numbers(
            self.tau,
            self.pull,
            self.shift,
            self.sigma,
            pixels.bound,
            self.side,
            pixels.shrink(self.sigma),
            self.relaxation,
            self.ahead,
            self.momentum,
        )


@runner(PDHG)
def pdhg_run(method: PDHG, problem: Problem, oracle: Oracle) -> "PixelRun | None":
    """Return a run of PDHG: c = Lτ/(1 + Lτ), b = τ."""
    pixels = pixels_of(problem)
    if pixels is None:
        return None
    tau, sigma = map(_as_row, method.step_sizes(method.saddle(problem)))
    pull = pixels.fidelity * tau
    step = StepNumbers(tau, pull / (1 + pull), tau, sigma)
    return PixelRun(pixels, method, problem, step, clipped=True)


@runner(CondatVu)
def condat_vu_run(method: CondatVu, problem: Problem, oracle: Oracle) -> "PixelRun | None":
    """Return a run of Condat and Vũ's method without a map or with a stencil: c = Lτ, b = 0."""
    pixels = pixels_of(problem)
    if pixels is None:
        return None
    side = _side_of(method.mirror)
    if side is None:
        return None
    tau, sigma = map(_as_row, method.step_sizes(method.saddle(problem)))
    step = StepNumbers(tau, pixels.fidelity * tau, 0.0, sigma, side)
    return PixelRun(pixels, method, problem, step, clipped=False)


@runner(ScheduledPrimalDual)
def scheduled_run(
    method: ScheduledPrimalDual, problem: Problem, oracle: Oracle
) -> "ScheduledPixelRun | None":
    """Return a run of the scheduled method without a map or with a stencil."""
    pixels = pixels_of(problem)
    if pixels is None or _side_of(method.mirror) is None:
        return None
    return ScheduledPixelRun(pixels, method, problem)


def _side_of(mirror: MirrorMap | None) -> Number | None:
    """Return a quarter of the damping of a stencil, 0 without a map, or None for another map."""
    if mirror is None:
        return 0.0
    return mirror.side if type(mirror) is Stencil else None


@runner(DualFISTA)
def dual_fista_run(method: DualFISTA, problem: Problem, oracle: Oracle) -> "DualPixelRun | None":
    """Return a run of FISTA on the dual, if no pixel is missing."""
    pixels = pixels_of(problem)
    if pixels is None or pixels.mask is not None:
        return None
    return DualPixelRun(pixels, method.dual_step(problem))


def _as_row(number: Number) -> Number:
    """Return a number for every sample as one row (1, batch) of a table of steps and samples."""
    if isinstance(number, Tensor):
        return number.detach().double().cpu().reshape(1, -1)
    return number


class PixelRun:
    """Steps of PDHG and of Condat and Vũ's method in one call of a C kernel. With w = Dᵀu both are

    .. code-block:: none

        x⁺ = x − τw + c·Z(y − x + b·w),   u⁺ = prox_{σG*}(u + σD(2x⁺ − x))
        (x, u) ← (x, u) + ρ((x⁺, u⁺) − (x, u))
        PDHG:       c = Lτ/(1 + Lτ),  b = τ,  L = 2s,  and x⁺ is clipped to the box of the problem
        Condat–Vũ:  c = Lτ,           b = 0;  with a stencil S, x⁺ = x − τS(w + LZ(x − y))
    """

    def __init__(
        self, pixels: Pixels, method: PDHG, problem: Problem, step: StepNumbers, *, clipped: bool
    ) -> None:
        self.pixels = pixels
        self.method = method
        self.problem = problem
        self.box = (pixels.low, pixels.high) if clipped else None
        self.step = step
        if not isinstance(method.relaxation, Schedule):
            self.numbers = step._replace(relaxation=method.relaxation).table(pixels)

    def __call__(self, state: PDHGState, steps: int) -> PDHGState:
        pixels = self.pixels
        iterate = state.iterate
        result = kernels.primal_dual(
            iterate.x,
            _pair(iterate.u),
            pixels.y,
            pixels.mask,
            self.box,
            self._numbers(state.k + 1, steps),
            steps,
            relaxed=self.method.relaxes,
            isotropic=pixels.isotropic,
            coupled=pixels.coupled,
        )
        relaxed = Relaxed(result.x, _blocks(*result.u)) if self.method.relaxes else None
        u = _blocks(*result.dual_point)
        return PDHGState(state.k + steps, result.point, u, relaxed)

    def _numbers(self, first: int, steps: int) -> Tensor:
        method = self.method
        if not isinstance(method.relaxation, Schedule):
            return self.numbers
        rho = method.relaxation_sequence(method.saddle(self.problem), first, steps)
        return self.step._replace(relaxation=rho).table(self.pixels)


class ScheduledPixelRun:
    """Steps of :class:`~mirrordescent.methods.ScheduledPrimalDual` in one call of a C kernel."""

    def __init__(self, pixels: Pixels, method: ScheduledPrimalDual, problem: Problem) -> None:
        self.pixels = pixels
        self.method = method
        self.problem = problem
        self.box = (pixels.low, pixels.high) if method.implicit else None

    def __call__(self, state: ScheduledState, steps: int) -> ScheduledState:
        pixels = self.pixels
        method = self.method
        iterate = state.iterate
        relaxes = method.relaxation is not None
        result = kernels.primal_dual(
            iterate.x,
            _pair(iterate.u),
            pixels.y,
            pixels.mask,
            self.box,
            self._step(state.k + 1, steps).table(pixels),
            steps,
            relaxed=relaxes,
            move=state.move,
            isotropic=pixels.isotropic,
            coupled=pixels.coupled,
        )
        return ScheduledState(
            state.k + steps,
            result.point,
            _blocks(*result.dual_point),
            cast(Tensor, result.move),
            Relaxed(result.x, _blocks(*result.u)) if relaxes else None,
        )

    def _step(self, first: int, steps: int) -> StepNumbers:
        method = self.method
        sizes = method.step_sequences(method.saddle(self.problem), first, steps)
        pull = self.pixels.fidelity * sizes.tau
        side = cast(Number, _side_of(method.mirror))
        if method.implicit:
            step = StepNumbers(sizes.tau, pull / (1 + pull), sizes.tau, sizes.sigma)
        else:
            step = StepNumbers(sizes.tau, pull, 0.0, sizes.sigma, side)
        return step._replace(
            relaxation=sizes.relaxation, ahead=sizes.ahead, momentum=sizes.momentum
        )


class DualPixelRun:
    """Steps of FISTA on the dual of total-variation denoising in one call of a C kernel.

    x(v) = y − Dᵀv/(2s), clipped to the box of the problem.
    """

    def __init__(self, pixels: Pixels, sigma: float) -> None:
        self.pixels = pixels
        self.numbers = kernels.numbers(
            sigma, pixels.bound, pixels.shrink(sigma), 1 / pixels.fidelity
        )

    def __call__(self, state: DualFISTAState, steps: int) -> DualFISTAState:
        pixels = self.pixels
        x, new_u, new_v, theta = kernels.dual_fista(
            _pair(state.u),
            _pair(state.v),
            state.theta,
            pixels.y,
            (pixels.low, pixels.high),
            self.numbers,
            steps,
            isotropic=pixels.isotropic,
            coupled=pixels.coupled,
        )
        return DualFISTAState(state.k + steps, x, _blocks(*new_u), _blocks(*new_v), theta)


def _pair(u: Tree) -> tuple[Tensor, Tensor]:
    blocks = cast("dict[str, Tensor]", u)
    return blocks["vertical"], blocks["horizontal"]


def _blocks(vertical: Tensor, horizontal: Tensor) -> dict[str, Tensor]:
    return {"vertical": vertical, "horizontal": horizontal}
