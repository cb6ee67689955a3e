"""How far ∇M* is from the inverse of ∇M, and what that does to a step (section 5.1)."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor

from mirrordescent.mirrors import MirrorMap
from mirrordescent.solving import Snapshot
from mirrordescent.theory.energies import moved
from mirrordescent.theory.geometry import difference, inside
from mirrordescent.theory.watched import Rows, Watched, bare, storage_of, theorem_of
from mirrordescent.trees import Tree, norm, tree_map


class Inconsistency(NamedTuple):
    """‖(∇M*∘∇M − I)x‖ and ‖(∇M∘∇M* − I)y‖ in ℓ₂, per sample, and the same relative to ‖x‖ and ‖y‖.

    The second is not zero for an exact map of a constrained set, where y is determined up to a
    normal vector only: on the simplex, up to a constant.
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
    """Measure at points, such as those of a trajectory, and at dual points, or else at the images
    of the points.

    The images, ∇M of the points, can be given where they are known.

    >>> import torch
    >>> from mirrordescent.mirrors import Diagonal
    >>> inconsistency(Diagonal(2.0), [torch.ones(1, 3)]).relative_primal
    tensor([0.])
    """
    images = [mirror.to_dual(x) for x in points] if images is None else images
    y = images if duals is None else duals
    errors = [
        difference(mirror.to_primal(image), x) for image, x in zip(images, points, strict=True)
    ]
    measured = (errors, [dual_error(mirror, dual) for dual in y], points, y)
    primal, dual, x_size, y_size = (torch.cat([norm(tree) for tree in trees]) for trees in measured)
    return Inconsistency(primal, dual, _ratio(primal, x_size), _ratio(dual, y_size))


def _ratio(error: Tensor, size: Tensor) -> Tensor:
    """error/size: 0 where there is no error, and not a number where there is one at the origin."""
    return torch.where(error > 0, error / torch.where(size > 0, size, torch.nan), 0.0)


@torch.no_grad()
def inconsistency_over_box(
    mirror: MirrorMap, lower: float, upper: float, like: Tree, generator: Generator, count: int = 4
) -> Inconsistency:
    """Measure at points drawn uniformly from a box, ``count`` times a batch like another, and moved
    into the domain.

    The dual points are drawn from the box that the images of the points span, entry by entry.
    """

    def draw(low: Tensor, high: Tensor) -> Tensor:
        share = torch.rand(low.shape, generator=generator, device=generator.device, dtype=low.dtype)
        return torch.lerp(low, high, share.to(low.device))

    low, high = (
        tree_map(lambda leaf, end=end: torch.full_like(leaf, end), like) for end in (lower, upper)
    )
    points = [inside(tree_map(draw, low, high), mirror.primal_domain) for _ in range(count)]
    images = [mirror.to_dual(x) for x in points]
    least, most = (
        tree_map(
            lambda *each, end=end: end(torch.cat(each), 0, keepdim=True).expand_as(each[0]), *images
        )
        for end in (torch.amin, torch.amax)
    )
    return inconsistency(
        mirror, points, [tree_map(draw, least, most) for _ in range(count)], images
    )


def dual_error(mirror: MirrorMap, y: Tree) -> Tree:
    """e(y) = (∇M∘∇M* − I)(y)."""
    return difference(mirror.to_dual(mirror.to_primal(y)), y)


def primal_update_error(mirror: MirrorMap, x: Tree, g: Tree, t: float | Tensor) -> Tree:
    """∇M(x⁺) − ∇M(x̂⁺) = e(∇M(x) − t g), for the primal update x⁺ = ∇M*(∇M(x) − t g).

    The paper prints ∇M* − (∇M)⁻¹ in place of e = ∇M∘∇M* − I, a primal vector where a dual one is
    meant. The error is made anew in every step, at full size however short the step, and adds up.
    """
    return dual_error(mirror, moved(mirror.to_dual(x), g, t))


def dual_update_error(mirror: MirrorMap, y: Tree, g: Tree, t: float | Tensor) -> Tree:
    """∇M(x⁺) − ∇M(x̂⁺) = e(y⁺) − e(y), for the dual update y⁺ = y − t g with x = ∇M*(y) and x̂⁺ the
    exact step from x.

    The paper prints t∇f(x) − t∇f(∇M*(∇M(x))), which takes y = ∇M(x) for granted; that fails after
    the first step. The difference is small where the step is, and over a run it telescopes: all
    errors together come to e(y_k) − e(y_0).
    """
    return difference(dual_error(mirror, moved(y, g, t)), dual_error(mirror, y))


class UpdateErrors:
    """Both update errors of section 5.1, side by side along one dual-stored run: a callback of
    ``solve``.

    At the iterates y_k, x_k = ∇M*(y_k) of SMD, per sample:

    =================
    ===================================================================================== ``dual``
    ‖e(y_k)‖ ``primal``         ‖(∇M*∘∇M − I)x_k‖ ``dual_update``    ‖e(y_{k+1}) − e(y_k)‖, the
    error of the step that was taken ``primal_update``  ‖e(∇M(x_k) − t_k g_k)‖, the error of the
    step that primal storage would have taken ``dual_total``     ‖e(y_{k+1}) − e(y_0)‖, what the
    former add up to ``primal_total``   ‖Σ e(∇M(x_i) − t_i g_i)‖, what the latter add up to
    =================
    =====================================================================================

    Args:
        every: how many steps lie between measurements, each of which costs four passes through the
            networks. In the primal total a measured step stands for all up to the next.
    """

    _before: Any

    def __init__(self, every: int = 5) -> None:
        self.every = every
        self._rows = Rows()
        self.iterations: list[int] = []

    @property
    def series(self) -> dict[str, Tensor]:
        """What was measured, (measurements, batch) each; ``iterations`` says where."""
        return self._rows.stacked()

    def __call__(self, look: Snapshot) -> None:
        """Compare the newest state with the one before."""
        method = bare(look.method)
        state = look.state.inner if isinstance(look.method, Watched) else look.state
        if theorem_of(method) != "descent" or storage_of(method) != "dual":
            raise TypeError(
                f"update errors are compared along a run of SMD, not of {type(method).__name__}"
            )
        mirror = cast(MirrorMap, method.mirror)
        if look.k == 0:
            self._first = dual_error(mirror, state.y)
            self._total = tree_map(torch.zeros_like, self._first)
        elif look.k != self._before.k + 1:
            raise ValueError("update errors need every step: solve(…, check_every=1)")
        elif self._before.k % self.every == 0:
            self.iterations.append(self._before.k)
            errors = self._errors(mirror, self._before, state)
            self._rows.append({name: norm(error) for name, error in errors.items()}, look.running)
        self._before = state

    def _errors(self, mirror: MirrorMap, before: Any, after: Any) -> dict[str, Tree]:
        image = mirror.to_dual(before.x)
        error = difference(image, before.y)
        next_error = difference(mirror.to_dual(after.x), after.y)
        # Primal storage would have aimed at ∇M(x_k) − t g, and t g is what the dual iterate moved
        # by.
        primal_update = dual_error(mirror, tree_map(torch.add, error, after.y))
        self._total = tree_map(
            lambda total, error: total + self.every * error, self._total, primal_update
        )
        return {
            "dual": error,
            "primal": difference(mirror.to_primal(image), before.x),
            "dual_update": difference(next_error, error),
            "primal_update": primal_update,
            "dual_total": difference(next_error, self._first),
            "primal_total": self._total,
        }
