"""The distance of ∇M* from the inverse of ∇M, and its effect on a step (section 5.1)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor

from mirrordescent.mirrors import MirrorMap
from mirrordescent.solving import Snapshot
from mirrordescent.theory.energies import dual_step
from mirrordescent.theory.geometry import difference, move_inside
from mirrordescent.theory.recording import (
    SeriesBuilder,
    StepRecorder,
    storage_of,
    theorem_of,
    unwrap,
)
from mirrordescent.trees import Tree, norm, tree_map


class Inconsistency(NamedTuple):
    """‖(∇M*∘∇M − I)x‖ and ‖(∇M∘∇M* − I)y‖ in ℓ₂ per sample, absolute and relative to ‖x‖, ‖y‖.

    The dual one is not zero for an exact map of a constrained set, where y is determined only up to
    a normal vector: on the simplex, up to a constant.
    """

    primal: Tensor
    dual: Tensor
    relative_primal: Tensor
    relative_dual: Tensor


@torch.no_grad()
def inconsistency(
    mirror: MirrorMap,
    points: Sequence[Tree],
    duals: Sequence[Tree] | None = None,
    images: Sequence[Tree] | None = None,
) -> Inconsistency:
    """Measure the inconsistency of a map at some points.

    Args:
        mirror: Map to examine.
        points: Primal points, such as those of a trajectory.
        duals: Dual points; by default the images of the points.
        images: The images ∇M of the points, if they are known.

    >>> import torch
    >>> from mirrordescent.mirrors import Diagonal
    >>> inconsistency(Diagonal(2.0), [torch.ones(1, 3)]).relative_primal
    tensor([0.])
    """
    if images is None:
        images = [mirror.to_dual(x) for x in points]
    if duals is None:
        duals = images
    errors = [difference(mirror.to_primal(y), x) for y, x in zip(images, points, strict=True)]
    primal = _norms(errors)
    dual = _norms([dual_error(mirror, y) for y in duals])
    relative_primal = _relative(primal, _norms(points))
    relative_dual = _relative(dual, _norms(duals))
    return Inconsistency(primal, dual, relative_primal, relative_dual)


def _norms(trees: Sequence[Tree]) -> Tensor:
    return torch.cat([norm(tree) for tree in trees])


def _relative(error: Tensor, size: Tensor) -> Tensor:
    """Return error/size: 0 where there is no error, NaN where there is an error at the origin."""
    return torch.where(error > 0, error / torch.where(size > 0, size, torch.nan), 0.0)


@torch.no_grad()
def inconsistency_over_box(
    mirror: MirrorMap, lower: float, upper: float, like: Tree, generator: Generator, count: int = 4
) -> Inconsistency:
    """Measure the inconsistency of a map at random points of a box.

    The primal points are drawn uniformly from the box and moved into the domain of the map. The
    dual points are drawn from the box that the images of the primal points span, entry by entry.

    Args:
        mirror: Map to examine.
        lower: Lower end of the box in every entry.
        upper: Upper end of the box in every entry.
        like: Batch whose shape, precision and device the points have.
        generator: Random generator for the points.
        count: Number of batches.
    """

    def draw(low: Tensor, high: Tensor) -> Tensor:
        share = torch.rand(low.shape, generator=generator, device=generator.device, dtype=low.dtype)
        return torch.lerp(low, high, share.to(low.device))

    def extreme(reduce: Callable[..., Tensor], trees: Sequence[Tree]) -> Tree:
        """Reduce every entry over the samples of all trees."""

        def reduce_leaves(*batches: Tensor) -> Tensor:
            return reduce(torch.cat(batches), 0, keepdim=True).expand_as(batches[0])

        return tree_map(reduce_leaves, *trees)

    low = tree_map(lambda leaf: torch.full_like(leaf, lower), like)
    high = tree_map(lambda leaf: torch.full_like(leaf, upper), like)
    points = [move_inside(tree_map(draw, low, high), mirror.primal_domain) for _ in range(count)]
    images = [mirror.to_dual(x) for x in points]
    dual_low = extreme(torch.amin, images)
    dual_high = extreme(torch.amax, images)
    duals = [tree_map(draw, dual_low, dual_high) for _ in range(count)]
    return inconsistency(mirror, points, duals, images)


def dual_error(mirror: MirrorMap, y: Tree) -> Tree:
    """Return e(y) = (∇M∘∇M* − I)(y)."""
    return difference(mirror.to_dual(mirror.to_primal(y)), y)


def primal_update_error(mirror: MirrorMap, x: Tree, g: Tree, t: float | Tensor) -> Tree:
    """Return ∇M(x⁺) − ∇M(x̂⁺) = e(∇M(x) − t g) for the primal update x⁺ = ∇M*(∇M(x) − t g).

    The paper prints ∇M* − (∇M)⁻¹ in place of e = ∇M∘∇M* − I, a primal vector in place of a dual
    one. Every step makes the error anew, at full size even if the step is short, and the errors of
    a run add up.
    """
    return dual_error(mirror, dual_step(mirror.to_dual(x), g, t))


def dual_update_error(mirror: MirrorMap, y: Tree, g: Tree, t: float | Tensor) -> Tree:
    """Return ∇M(x⁺) − ∇M(x̂⁺) = e(y⁺) − e(y) for the dual update y⁺ = y − t g with x = ∇M*(y).

    Here x̂⁺ is the exact step from x. The paper prints t∇f(x) − t∇f(∇M*(∇M(x))), which assumes
    y = ∇M(x); this fails after the first step. The error is small if the step is short, and the
    errors of a run telescope to e(y_k) − e(y_0).
    """
    return difference(dual_error(mirror, dual_step(y, g, t)), dual_error(mirror, y))


class UpdateErrors:
    """Compare both update errors of section 5.1 along one dual-stored run: a callback of ``solve``.

    At the iterates y_k, x_k = ∇M*(y_k) of SMD it measures, per sample,

    =================  ======================================================================
    ``dual``           ‖e(y_k)‖
    ``primal``         ‖(∇M*∘∇M − I)x_k‖
    ``dual_update``    ‖e(y_{k+1}) − e(y_k)‖, the error of the step that was taken
    ``primal_update``  ‖e(∇M(x_k) − t_k g_k)‖, the error of a step with primal storage
    ``dual_total``     ‖e(y_{k+1}) − e(y_0)‖, the norm of the sum of the dual update errors
    ``primal_total``   ‖Σ e(∇M(x_i) − t_i g_i)‖, the norm of the sum of the primal ones
    =================  ======================================================================

    Args:
        every: Number of steps between measurements, each of which costs four passes through the
            networks. In the primal total a measured step stands for all steps up to the next.
    """

    _previous: Any

    def __init__(self, every: int = 5) -> None:
        self.every = every
        self.iterations: list[int] = []
        self._series = SeriesBuilder()

    @property
    def series(self) -> dict[str, Tensor]:
        """The measured series, (measurements, batch) each; ``iterations`` has their indices."""
        return self._series.stacked()

    def __call__(self, snapshot: Snapshot) -> None:
        """Compare the newest state with the previous one."""
        method = unwrap(snapshot.method)
        state = snapshot.state
        if isinstance(snapshot.method, StepRecorder):
            state = state.inner
        if theorem_of(method) != "descent" or storage_of(method) != "dual":
            raise TypeError(
                f"UpdateErrors needs a dual-stored run of SMD, not of {type(method).__name__}"
            )
        mirror = cast(MirrorMap, method.mirror)
        if snapshot.k == 0:
            self._first_error = dual_error(mirror, state.y)
            self._primal_total = tree_map(torch.zeros_like, self._first_error)
        elif snapshot.k != self._previous.k + 1:
            raise ValueError("UpdateErrors must see every step: call solve(…, check_every=1)")
        elif self._previous.k % self.every == 0:
            self.iterations.append(self._previous.k)
            errors = self._errors(mirror, self._previous, state)
            norms = {name: norm(error) for name, error in errors.items()}
            self._series.append(norms, snapshot.running)
        self._previous = state

    def _errors(self, mirror: MirrorMap, previous: Any, current: Any) -> dict[str, Tree]:
        image = mirror.to_dual(previous.x)
        error = difference(image, previous.y)
        next_error = difference(mirror.to_dual(current.x), current.y)
        # A primal update starts at ∇M(x_k) instead of y_k and moves by the same −t g.
        primal_update = dual_error(mirror, tree_map(torch.add, error, current.y))
        self._primal_total = tree_map(
            lambda total, error: total + self.every * error, self._primal_total, primal_update
        )
        return {
            "dual": error,
            "primal": difference(mirror.to_primal(image), previous.x),
            "dual_update": difference(next_error, error),
            "primal_update": primal_update,
            "dual_total": difference(next_error, self._first_error),
            "primal_total": self._primal_total,
        }
