"""Fast runs of primal-dual methods on images with total variation."""

from typing import NamedTuple, cast

from torch import Tensor

from mirrordescent import kernels
from mirrordescent.execution.registry import runner
from mirrordescent.execution.tv_images import pixels_of
from mirrordescent.methods.primal_dual import PDHG, CondatVu, DualFISTA, DualFISTAState, PDHGState
from mirrordescent.mirrors import Stencil
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.problems.pixels import Pixels
from mirrordescent.schedules import Number


class StepNumbers(NamedTuple):
    """Numbers of a step of :class:`PixelRun`.

    τ, c, b and σ of its formula, a quarter of the damping of the stencil, and whether x is clipped
    to the box of the problem.
    """

    tau: Number
    pull: Number
    shift: Number
    sigma: Number
    side: Number = 0.0
    clipped: bool = False


@runner(PDHG)
def pdhg_run(method: PDHG, problem: Problem, oracle: Oracle) -> "PixelRun | None":
    """Return a run of PDHG: c = Lτ/(1 + Lτ), b = τ."""
    pixels = pixels_of(problem)
    if pixels is None:
        return None
    tau, sigma = map(_as_row, method.step_sizes(method.saddle(problem)))
    pull = pixels.fidelity * tau
    return PixelRun(pixels, StepNumbers(tau, pull / (1 + pull), tau, sigma, clipped=True))


@runner(CondatVu)
def condat_vu_run(method: CondatVu, problem: Problem, oracle: Oracle) -> "PixelRun | None":
    """Return a run of Condat and Vũ's method without a map or with a stencil: c = Lτ, b = 0."""
    pixels = pixels_of(problem)
    if pixels is None:
        return None
    side: Number = 0.0
    if type(method.mirror) is Stencil:
        side = method.mirror.side
    elif method.mirror is not None:
        return None
    tau, sigma = map(_as_row, method.step_sizes(method.saddle(problem)))
    return PixelRun(pixels, StepNumbers(tau, pixels.fidelity * tau, 0.0, sigma, side))


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
        PDHG:       c = Lτ/(1 + Lτ),  b = τ,  L = 2s,  and x⁺ is clipped to the box of the problem
        Condat–Vũ:  c = Lτ,           b = 0;  with a stencil S, x⁺ = x − τS(w + LZ(x − y))
    """

    def __init__(self, pixels: Pixels, step: StepNumbers) -> None:
        self.pixels = pixels
        self.box = (pixels.low, pixels.high) if step.clipped else None
        self.numbers = kernels.numbers(
            step.tau,
            step.pull,
            step.shift,
            step.sigma,
            pixels.bound,
            step.side,
            pixels.shrink(step.sigma),
        )

    def __call__(self, state: PDHGState, steps: int) -> PDHGState:
        u = cast("dict[str, Tensor]", state.u)
        pixels = self.pixels
        x, (vertical, horizontal) = kernels.primal_dual(
            state.x,
            (u["vertical"], u["horizontal"]),
            pixels.y,
            pixels.mask,
            self.box,
            self.numbers,
            steps,
            isotropic=pixels.isotropic,
            coupled=pixels.coupled,
        )
        return PDHGState(state.k + steps, x, {"vertical": vertical, "horizontal": horizontal})


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
        u = cast("dict[str, Tensor]", state.u)
        v = cast("dict[str, Tensor]", state.v)
        pixels = self.pixels
        x, new_u, new_v, theta = kernels.dual_fista(
            (u["vertical"], u["horizontal"]),
            (v["vertical"], v["horizontal"]),
            state.theta,
            pixels.y,
            (pixels.low, pixels.high),
            self.numbers,
            steps,
            isotropic=pixels.isotropic,
            coupled=pixels.coupled,
        )
        return DualFISTAState(state.k + steps, x, _blocks(*new_u), _blocks(*new_v), theta)


def _blocks(vertical: Tensor, horizontal: Tensor) -> dict[str, Tensor]:
    return {"vertical": vertical, "horizontal": horizontal}
