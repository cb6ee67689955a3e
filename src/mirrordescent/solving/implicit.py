"""A solver as a layer of a network, with derivatives of its solutions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrordescent._internal.eager import eager, without_autocast
from mirrordescent._internal.suggestions import require_known
from mirrordescent.conjugate_gradients import conjugate_gradients
from mirrordescent.execution import steps_for
from mirrordescent.methods.base import Method
from mirrordescent.oracles import Default, Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, descend, leaves, map_tensors, norm, tree_map

Through: TypeAlias = Literal["steps", "solution"]

SOLVED = 1e-3  # largest gradient of a solution, relative to the gradient at the start
REST = 1e-2  # largest distance from the limit, relative to the way from the start
STILL = 1e-6  # share of this way in the last window below which x has settled
WINDOW = 10  # least number of steps by which the speed of convergence is estimated
CONJUGATE_GRADIENTS = 500  # largest number of iterations


@eager
@without_autocast
def layer(
    problem: Problem,
    method: Method[Any],
    x0: Tree | None = None,
    *,
    iterations: int = 200,
    last: int = 20,
    through: Through = "steps",
    oracle: Oracle | None = None,
) -> Tree:
    """Return solutions x* whose derivatives flow to the data, weights and operators of a problem.

    .. code-block:: none

        "steps"       z = T(z; θ) at a fixed point:   dz/dθ = Σ_j (∂T/∂z)^j ∂T/∂θ
        "solution"    ∇f(x; θ) = 0 at the solution:   dx/dθ = −H⁻¹ ∂∇f/∂θ,  H = ∇²f

    ``"steps"`` differentiates the ``last`` steps, which gives the first terms of the sum; the steps
    before them are taken without a graph. If T contracts by ρ, the relative error is ρ^last. This
    works for non-smooth f and any constraints, and differentiates the numbers of the method too.
    There is a warning if x still moves in the last steps, since then ρ is near 1 and derivatives
    are too small.

    ``"solution"`` uses the implicit function theorem. It is exact once the run has converged,
    whatever the method, and needs the memory of one gradient. H⁻¹ is applied by conjugate gradients
    with products Hv by automatic differentiation. f must be twice differentiable near x*, such as a
    Huber function. On an orthant, a box or a simplex, H is restricted to the face in which x* lies:
    derivatives along active constraints are 0.

    Args:
        problem: Problem with tensors that require derivatives, such as
            ``md.TVDenoising(y, weight)``.
        method: Method of the steps. For ``"steps"`` it must be differentiable, so it cannot search
            for its step sizes.
        x0: Start. By default the problem's own.
        iterations: Number of steps in all.
        last: Number of steps to differentiate.
        through: ``"steps"`` or ``"solution"``.
        oracle: Oracle of the gradients, as in :func:`~mirrordescent.solve`.

    >>> import torch
    >>> from mirrordescent import GD, Quadratic
    >>> centre = torch.ones(1, 2, requires_grad=True)
    >>> bowl = Quadratic(torch.tensor([1.0, 0.1]), centre)
    >>> x = layer(bowl, GD(1.0), through="solution")
    >>> torch.autograd.grad(x.sum(), centre)[0].round(decimals=3)
    tensor([[1., 1.]])
    """
    require_known(through, get_args(Through), "through")
    least = 1
    if through == "solution":
        last = least = 0
    if not least <= last <= iterations or iterations < 1:
        raise ValueError(
            f"layer needs 1 ≤ last ≤ iterations, got last={last} and iterations={iterations}"
        )
    oracle = oracle or Default()
    with torch.no_grad():
        if through == "solution":
            _require_smooth(problem)
        x0 = problem.start() if x0 is None else x0
        problem.check(x0)
        method.resolve_oracle(oracle)
        run = steps_for(method, problem, oracle)
        state = method.init(x0, problem)
        window = max(1, min(iterations // 4, max(last // 2, WINDOW)))
        marks = (iterations - 2 * window, iterations - window)
        passed = []
        for k in sorted(
            {*(mark for mark in marks if mark <= iterations - last), iterations - last}
        ):
            if k > state.k:
                state = run(state, k - state.k)
            if k in marks:
                passed.append(method.answer(state))
        state = map_tensors(torch.Tensor.detach, state)
    if through == "solution":
        _require_inside(problem, method, method.answer(state))
        if not torch.is_grad_enabled():
            return method.answer(state)
        return _solution(problem, method.answer(state), x0)
    with torch.enable_grad():
        for k in range(iterations - last + 1, iterations + 1):
            state = method.step(problem, state, oracle)
            if k in marks:
                passed.append(method.answer(state))
        x = method.answer(state)
    _require_inside(problem, method, x)
    if len(passed) == 2:  # a run of one step has no speed
        _warn_if_moving(x0, passed[0], passed[1], x)
    return x


def _require_inside(problem: Problem, method: Method[Any], x: Tree) -> None:
    """Raise an error if x is not in the set over which f is minimised."""
    name = type(method).__name__
    problem.domain.require(x, f"the answer of {name}", type(problem).__name__, closed=True)


@torch.no_grad()
def _warn_if_moving(x0: Tree, earlier: Tree, before: Tree, x: Tree) -> None:
    """Warn if x is far from the limit of a run, which is extrapolated from three points.

    If a window of steps contracts by q, the way that remains is the last one times q/(1 − q).

    Args:
        x0: Start.
        earlier: Answer two windows before the end.
        before: Answer one window before the end.
        x: Answer at the end.
    """
    moved = norm(tree_map(torch.sub, x, before))
    q = moved / norm(tree_map(torch.sub, before, earlier)).clamp(min=torch.finfo(moved.dtype).tiny)
    way = norm(tree_map(torch.sub, x, x0))
    rest = torch.where(q < 1, moved * q / (1 - q), torch.inf)
    still = moved > torch.maximum(STILL * way, 64 * torch.finfo(moved.dtype).eps * norm(x))
    if bool((still & (rest > REST * way)).any()):
        warnings.warn(
            "layer has not converged: x still moves in the last steps, so that their derivatives "
            "are smaller than those of the solution. Increase iterations and last",
            stacklevel=4,
        )


def _require_smooth(problem: Problem) -> None:
    if problem.smoothness() == math.inf:
        raise TypeError(
            f"{type(problem).__name__} has kinks, where the implicit function theorem says "
            "nothing: use through='steps', or round the kinks (huber=…, if the problem has this "
            "argument)"
        )


def _solution(problem: Problem, x: Tree, x0: Tree) -> Tree:
    """Return x with the derivatives of a solution."""
    with torch.enable_grad():
        # A graph of the gradient as a function of these points gives the products Hv.
        points = tree_map(lambda leaf: leaf.detach().clone().requires_grad_(), x)
        gradient = problem.grad(points)
    if not all(leaf.requires_grad for leaf in leaves(gradient)):
        raise TypeError(f"the gradient of {type(problem).__name__} cannot be differentiated again")
    project = _face_projection(problem, x, gradient, x0)
    apply: Callable[..., tuple[Tensor, ...]] = _Solved.apply
    return _tree(_keys(x), apply(_keys(x), points, project, *leaves(gradient)))


@torch.no_grad()
def _face_projection(problem: Problem, x: Tree, gradient: Tree, x0: Tree) -> Callable[[Tree], Tree]:
    """Return the projection on the directions in which x may move.

    These are the directions of the face of the domain in which a gradient step from x ends. Warn if
    this step is long, since then x is not a solution.
    """
    smoothness = problem.smoothness() or 1.0

    def gradient_step(point: Tree, slope: Tree) -> Tree:
        moved = tree_map(lambda a, g: descend(a, g, 1 / smoothness), point, slope)
        return problem.domain.project(moved)

    end = gradient_step(x, gradient)
    length = norm(tree_map(torch.sub, end, x))
    first_length = norm(tree_map(torch.sub, gradient_step(x0, problem.grad(x0)), x0))
    if bool((length > SOLVED * first_length).any()):
        warnings.warn(
            "layer has not converged: a gradient step still has "
            f"{float((length / first_length).max()):.1g} times the length of that at the start, "
            "and derivatives are exact only at a solution. Take more iterations",
            stacklevel=4,
        )
    return lambda v: problem.domain.along_face(end, v)


class _Solved(torch.autograd.Function):
    """The identity on x*, whose derivative with respect to the gradient g of f there is −H⁻¹."""

    @staticmethod
    def forward(
        ctx: Any, keys: Any, points: Tree, project: Callable[[Tree], Tree], *gradient: Tensor
    ) -> Any:
        ctx.keys = keys
        ctx.points = points
        ctx.project = project
        ctx.save_for_backward(*gradient)
        return tuple(leaf.detach().clone() for leaf in leaves(points))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_output: Tensor) -> Any:
        gradient = ctx.saved_tensors
        points = list(leaves(ctx.points))

        def hessian_times(v: Tree) -> Tree:
            with torch.enable_grad():
                image = torch.autograd.grad(gradient, points, tuple(leaves(v)), retain_graph=True)
            return ctx.project(_tree(ctx.keys, image))

        w = solve_hessian_system(hessian_times, ctx.project(_tree(ctx.keys, grad_output)))
        return None, None, None, *(-leaf for leaf in leaves(w))


def solve_hessian_system(
    product: Callable[[Tree], Tree], b: Tree, iterations: int = CONJUGATE_GRADIENTS
) -> Tree:
    """Solve Hw = b, given v ↦ Hv, to rounding errors.

    Raises:
        ValueError: If H is singular, so that the solution of the problem is not isolated.
    """
    eps = torch.finfo(next(leaves(b)).dtype).eps
    w, converged, singular = conjugate_gradients(product, b, 4 * eps, iterations)
    if bool(singular.any()):
        raise ValueError(
            f"the solution of problem {int(singular.nonzero()[0])} is not the only one nearby: "
            "its Hessian has no curvature along some direction. Add a small ridge μ‖x‖² to "
            "make the solution unique"
        )
    if not bool(converged.all()):
        warnings.warn(
            f"H⁻¹ was not found in {iterations} steps of conjugate gradients", stacklevel=2
        )
    return w


def _keys(x: Tree) -> list[str] | None:
    return None if isinstance(x, Tensor) else list(x)


def _tree(keys: list[str] | None, tensors: Sequence[Tensor]) -> Tree:
    """Return the tree with these leaves: a tensor, or a dict with these keys."""
    if keys is None:
        return tensors[0]
    return dict(zip(keys, tensors, strict=True))
