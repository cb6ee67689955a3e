"""How far ∇M* is from the inverse of ∇M, and what that does to a step (section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from mirrordescent.methods import SMD
from mirrordescent.mirrors import MirrorMap
from mirrordescent.solve import Look
from mirrordescent.theory.geometry import inside
from mirrordescent.trees import Tree, norm, tree_map


@dataclass(frozen=True)
class Inconsistency:
    """‖(∇M*∘∇M − I)x‖ and ‖(∇M∘∇M* − I)y‖ in ℓ₂, per sample, with the sizes ‖x‖ and ‖y‖.

    The second is not zero for an exact map of a constrained set, where y is determined up to a normal vector only:
    on the simplex, up to a constant.
    """

    primal: Tensor
    dual: Tensor
    primal_size: Tensor
    dual_size: Tensor

    @property
    def relative_primal(self) -> Tensor:
        """‖(∇M*∘∇M − I)x‖ / ‖x‖."""
        return _ratio(self.primal, self.primal_size)

    @property
    def relative_dual(self) -> Tensor:
        """‖(∇M∘∇M* − I)y‖ / ‖y‖."""
        return _ratio(self.dual, self.dual_size)


@torch.no_grad()
def inconsistency(
    mirror: MirrorMap,
    points: Sequence[Tree],
    duals: Sequence[Tree] | None = None,
    images: Sequence[Tree] | None = None,
) -> Inconsistency:
    """Measure at points, such as those of a trajectory, and at dual points, or else at the images of the points.

    The images, ∇M of the points, can be given where they are known.

    >>> import torch
    >>> from mirrordescent.mirrors import Diagonal
    >>> inconsistency(Diagonal(2.0), [torch.ones(1, 3)]).relative_primal
    tensor([0.])
    """
    images = [mirror.to_dual(x) for x in points] if images is None else images
    y = images if duals is None else duals
    primal_errors = [_difference(mirror.to_primal(image), x) for image, x in zip(images, points, strict=True)]
    dual_errors = [dual_error(mirror, dual) for dual in y]
    return Inconsistency(
        *(torch.cat([norm(tree) for tree in trees]) for trees in (primal_errors, dual_errors, points, y))
    )


@torch.no_grad()
def inconsistency_over_box(
    mirror: MirrorMap,
    lower: float,
    upper: float,
    like: Tree,
    generator: Generator,
    count: int = 4,
) -> Inconsistency:
    """Measure at points drawn uniformly from a box, ``count`` times a batch like another, and moved into the domain.

    The dual points are drawn from the box that the images of the points span, entry by entry.
    """

    def draw(low: Tensor, high: Tensor) -> Tensor:
        share = torch.rand(low.shape, generator=generator, device=generator.device, dtype=low.dtype)
        return torch.lerp(low, high, share.to(low.device))

    low, high = (tree_map(lambda leaf, end=end: torch.full_like(leaf, end), like) for end in (lower, upper))
    points = [inside(tree_map(draw, low, high), mirror.primal_domain) for _ in range(count)]
    images = [mirror.to_dual(x) for x in points]
    least = tree_map(lambda *leaves: torch.stack(leaves).amin((0, 1), keepdim=True)[0].expand_as(leaves[0]), *images)
    most = tree_map(lambda *leaves: torch.stack(leaves).amax((0, 1), keepdim=True)[0].expand_as(leaves[0]), *images)
    return inconsistency(mirror, points, [tree_map(draw, least, most) for _ in range(count)], images)


def dual_error(mirror: MirrorMap, y: Tree) -> Tree:
    """e(y) = (∇M∘∇M* − I)(y)."""
    return _difference(mirror.to_dual(mirror.to_primal(y)), y)


def primal_update_error(mirror: MirrorMap, x: Tree, g: Tree, t: float | Tensor) -> Tree:
    """∇M(x⁺) − ∇M(x̂⁺) = e(∇M(x) − t g), for the primal update x⁺ = ∇M*(∇M(x) − t g).

    The paper prints ∇M* − (∇M)⁻¹ in place of e = ∇M∘∇M* − I, a primal vector where a dual one is meant. The error is
    made anew in every step, at full size however short the step, and adds up.
    """
    return dual_error(mirror, tree_map(lambda y, g: y - t * g, mirror.to_dual(x), g))


def dual_update_error(mirror: MirrorMap, y: Tree, g: Tree, t: float | Tensor) -> Tree:
    """∇M(x⁺) − ∇M(x̂⁺) = e(y⁺) − e(y), for the dual update y⁺ = y − t g with x = ∇M*(y) and x̂⁺ the exact step from x.

    The paper prints t∇f(x) − t∇f(∇M*(∇M(x))), which takes y = ∇M(x) for granted; that fails after the first step. The
    difference is small where the step is, and over a run it telescopes: all errors together come to e(y_k) − e(y_0).
    """
    return _difference(dual_error(mirror, tree_map(lambda y, g: y - t * g, y, g)), dual_error(mirror, y))


class UpdateErrors:
    """Both update errors of section 5.1, side by side along one dual-stored run: a callback of ``solve``.

    At the iterates y_k, x_k = ∇M*(y_k) of SMD, per sample:

    =================  =====================================================================================
    ``dual``           ‖e(y_k)‖
    ``primal``         ‖(∇M*∘∇M − I)x_k‖
    ``dual_update``    ‖e(y_{k+1}) − e(y_k)‖, the error of the step that was taken
    ``primal_update``  ‖e(∇M(x_k) − t_k g_k)‖, the error of the step that primal storage would have taken
    ``dual_total``     ‖e(y_{k+1}) − e(y_0)‖, what the former add up to
    ``primal_total``   ‖Σ e(∇M(x_i) − t_i g_i)‖, what the latter add up to
    =================  =====================================================================================

    Args:
        every: measure at every so many steps only, since it costs four passes through the networks. In the primal total
            a measured step then stands for all up to the next.
    """

    NAMES = ("dual", "primal", "dual_update", "primal_update", "dual_total", "primal_total")

    def __init__(self, every: int = 5) -> None:
        self.every = every
        self.iterations: list[int] = []
        self._rows: dict[str, list[Tensor]] = {name: [] for name in self.NAMES}
        self._before: Look | None = None

    @property
    def series(self) -> dict[str, Tensor]:
        """What was measured, (measurements, batch) each; ``iterations`` says where."""
        return {name: torch.stack(rows) for name, rows in self._rows.items()}

    def __call__(self, look: Look) -> None:
        """Compare the newest state with the one before."""
        if not isinstance(look.method, SMD):
            raise TypeError(f"update errors are compared along a run of SMD, not of {type(look.method).__name__}")
        before, self._before = self._before, look
        if look.k == 0 or before is None:
            self._first = dual_error(look.method.mirror, look.state.y)
            self._total = tree_map(torch.zeros_like, self._first)
            return
        if look.k != before.k + 1:
            raise ValueError("update errors need every step: solve(…, check_every=1)")
        if before.k % self.every == 0:
            self._measure(look.method.mirror, before, look)

    def _measure(self, mirror: MirrorMap, before: Look, after: Look) -> None:
        y, x, next_y, next_x = before.state.y, before.state.x, after.state.y, after.state.x
        image, next_image = mirror.to_dual(x), mirror.to_dual(next_x)
        error, next_error = _difference(image, y), _difference(next_image, next_y)
        # The step t g is what the dual iterate moved by, whatever the oracle was.
        aimed = tree_map(lambda image, y, next_y: image - (y - next_y), image, y, next_y)
        primal_update = dual_error(mirror, aimed)
        self._total = tree_map(lambda total, error: total + self.every * error, self._total, primal_update)
        found = (
            error,
            _difference(mirror.to_primal(image), x),
            _difference(next_error, error),
            primal_update,
            _difference(next_error, self._first),
            self._total,
        )
        self.iterations.append(before.k)
        for name, tree in zip(self.NAMES, found, strict=True):
            self._rows[name].append(torch.where(after.running, norm(tree), torch.nan))


def _difference(first: Tree, second: Tree) -> Tree:
    return tree_map(torch.sub, first, second)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return part / whole.clamp(min=torch.finfo(whole.dtype).tiny)
