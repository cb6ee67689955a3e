"""A solver as a layer of a network: its solutions, with derivatives with respect to data, weights
and operators.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrordescent._internal.suggestions import require_known
from mirrordescent.execution import steps_for
from mirrordescent.methods.base import Method
from mirrordescent.oracles import Default, Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, descend, dot, leaves, map_tensors, norm, tree_map

Through: TypeAlias = Literal["steps", "solution"]

# of the gradient at the start: with more of it left, there is no solution to differentiate
SOLVED = 1e-3
CONJUGATE_GRADIENTS = 500


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
    """Return solutions x* through which derivatives flow to all that the problem is made of, data,
    weights, operators.

    .. code-block:: none

        "steps"       z = T(z; θ) at a fixed point:   dz/dθ = Σ_j (∂T/∂z)^j ∂T/∂θ
        "solution"    ∇f(x; θ) = 0 at the solution:   dx/dθ = −H⁻¹ ∂∇f/∂θ,  H = ∇²f

    Through the steps: the first are taken without a graph, as fast as they are, the ``last`` of
    them with one: these are the first terms of the sum. Where T contracts by ρ, what is left out is
    ρ^last of it. They work for kinks and any constraints, and reach the method's own numbers too.

    Through the solution, by the implicit function theorem: exact once the run has converged,
    whatever the method was, with the memory of one gradient. H⁻¹ is applied by conjugate gradients
    with products Hv by automatic differentiation. f has to be smooth and twice differentiable near
    x*, such as a Huber function. On an orthant, a box or a simplex, H is that of the face x* lies
    in: constraints that are active pass nothing on.

    Args:
        problem: made of tensors that require derivatives, such as ``md.TVDenoising(y, weight)``.
        method: for ``"steps"`` a method whose steps can be differentiated: not one that searches
            for its steps.
        x0: where to start; the problem's own start by default.
        iterations: how many steps in all.
        last: how many of them derivatives go through.
        through: ``"steps"`` or ``"solution"``.
        oracle: how gradients are computed, as in :func:`~mirrordescent.solve`.

    >>> import torch
    >>> from mirrordescent import GD, Quadratic
    >>> centre = torch.ones(1, 2, requires_grad=True)
    >>> bowl = Quadratic(torch.tensor([1.0, 0.1]), centre)
    >>> x = layer(bowl, GD(1.0), through="solution")
    >>> torch.autograd.grad(x.sum(), centre)[0].round(decimals=3)
    tensor([[1., 1.]])
    """
    require_known(through, get_args(Through), "through")
    last = last if through == "steps" else 0
    if not last <= iterations or (through == "steps" and last < 1) or iterations < 1:
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
        state = steps_for(method, problem, oracle)(method.init(x0, problem), iterations - last)
        state = map_tensors(torch.Tensor.detach, state)
    if through == "solution":
        return _solution(problem, method.answer(state), x0)
    with torch.enable_grad():
        for _ in range(last):
            state = method.step(problem, state, oracle)
        return method.answer(state)


def _require_smooth(problem: Problem) -> None:
    if problem.smoothness() == math.inf:
        raise TypeError(
            f"{type(problem).__name__} has kinks, where the implicit function theorem says nothing: "
            f"differentiate through the steps, or round them (huber=…, if it has that)"
        )


def _solution(problem: Problem, x: Tree, x0: Tree) -> Tree:
    """Return x with the derivatives of a solution."""
    with torch.enable_grad():
        # Points need a graph of their own: products Hv are derivatives of the gradient with respect
        # to them.
        points = tree_map(lambda leaf: leaf.detach().clone().requires_grad_(), x)
        gradient = problem.grad(points)
    if not all(leaf.requires_grad for leaf in leaves(gradient)):
        raise TypeError(f"the gradient of {type(problem).__name__} cannot be differentiated again")
    along = _face(problem, x, gradient, x0)
    apply: Callable[..., tuple[Tensor, ...]] = _Solved.apply
    found = apply(_keys(x), points, along, *leaves(gradient))
    return found[0] if isinstance(x, Tensor) else dict(zip(x, found, strict=True))


@torch.no_grad()
def _face(problem: Problem, x: Tree, gradient: Tree, x0: Tree) -> Callable[[Tree], Tree]:
    """Return the projection on directions in which x may move: those of the face that a gradient
    step ends in.
    """
    smoothness = problem.smoothness() or 1.0
    at, start = (
        problem.domain.project(tree_map(lambda a, g: descend(a, g, 1 / smoothness), point, slope))
        for point, slope in ((x, gradient), (x0, problem.grad(x0)))
    )
    moves, first = (
        norm(tree_map(torch.sub, after, before)) for after, before in ((at, x), (start, x0))
    )
    if bool((moves > SOLVED * first).any()):
        warnings.warn(
            f"layer has not converged: a gradient step still moves {float((moves / first).max()):.1g} times as far as "
            "at the start, and these derivatives are those of the solution only there. Take more iterations",
            stacklevel=4,
        )
    return lambda v: problem.domain.along_face(at, v)


class _Solved(torch.autograd.Function):
    """The identity on x*, whose derivative with respect to the gradient g of f there is −H⁻¹."""

    @staticmethod
    def forward(
        ctx: Any, keys: Any, points: Tree, along: Callable[[Tree], Tree], *gradient: Tensor
    ) -> Any:
        ctx.keys = keys
        ctx.points = points
        ctx.along = along
        ctx.save_for_backward(*gradient)
        return tuple(leaf.detach().clone() for leaf in leaves(points))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *wanted: Tensor) -> Any:
        gradient = ctx.saved_tensors
        points = list(leaves(ctx.points))

        def times(v: Tree) -> Tree:
            with torch.enable_grad():
                found = torch.autograd.grad(gradient, points, tuple(leaves(v)), retain_graph=True)
            return ctx.along(_tree(ctx.keys, found))

        w = conjugate_gradients(times, ctx.along(_tree(ctx.keys, wanted)))
        return None, None, None, *(-leaf for leaf in leaves(w))


def conjugate_gradients(
    times: Callable[[Tree], Tree], b: Tree, iterations: int = CONJUGATE_GRADIENTS
) -> Tree:
    """Solve Hw = b for every sample of a batch by itself, given v ↦ Hv for symmetric, positive
    semidefinite H.

    A sample stops where rounding does not let its residual fall further, or where H has no
    curvature left.
    """
    w = tree_map(torch.zeros_like, b)
    r = b
    p = r
    square = dot(r, r)
    enough = square * (4 * torch.finfo(square.dtype).eps) ** 2
    for _ in range(iterations):
        if not bool((square > enough).any()):
            return w
        Hp = times(p)
        curvature = dot(p, Hp)
        flat = (square > enough) & ~(curvature > 0)
        if bool(flat.any()):
            raise ValueError(
                f"the solution of problem {int(flat.nonzero()[0])} is not the only one nearby: its Hessian has no "
                "curvature along some direction. A small ridge, μ‖x‖², makes it unique"
            )
        length = torch.where(square > enough, square / curvature, 0.0)
        w = _plus(w, length, p)
        r = _plus(r, -length, Hp)
        before = square
        square = dot(r, r)
        p = _plus(r, torch.where(before > enough, square / before, 0.0), p)
    warnings.warn(f"H⁻¹ was not found in {iterations} steps of conjugate gradients", stacklevel=2)
    return w


def _plus(a: Tree, factor: Tensor, b: Tree) -> Tree:
    """a + factor·b, with a factor for every sample."""
    return tree_map(lambda x, y: descend(x, y, -factor), a, b)


def _keys(x: Tree) -> list[str] | None:
    return None if isinstance(x, Tensor) else list(x)


def _tree(keys: list[str] | None, found: Any) -> Tree:
    return found[0] if keys is None else dict(zip(keys, found, strict=True))
