"""Steps of preconditioned methods on all tensors of a network, in few calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mirrordescent import kernels
from mirrordescent.execution.owners import OwnedDirections, shared_group
from mirrordescent.execution.tensors import Tensors
from mirrordescent.methods.adaptive import TINY, AdaptivePreconditioned
from mirrordescent.methods.base import GradientMethod
from mirrordescent.methods.damped import DampedPreconditioned
from mirrordescent.methods.preconditioned import Preconditioned
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.mirrors.by_kind import ScaledMap
from mirrordescent.mirrors.norms import PNorm
from mirrordescent.mirrors.singular_values import (
    SingularValues,
    SpectralPower,
    approximation_on,
    combine_matrices,
    matrix_blocks,
)

DirectionFunction: TypeAlias = Callable[[Tensors], Tensors]
"""Function from tensors to their directions."""

_SPECTRAL = (SingularValues, SpectralPower)
_dtype = attrgetter("dtype")
_device = attrgetter("device")


class PreconditionedSteps:
    """Steps of :class:`Preconditioned` in place on many tensors, each with its own map.

    Args:
        method: Method of one of the tensors; the others differ from it only in their maps.
        maps: Map of each tensor.
        fused: Whether C kernels are used.
    """

    def __init__(
        self, method: Preconditioned, maps: Sequence[MirrorMap], fused: bool = False
    ) -> None:
        self.method: Any = method
        self.maps = list(maps)
        self.fused = fused
        self.directions = UnitDirections(maps, fused)

    def __call__(self, count: int, x: Tensors, stored: Tensors, g: Tensors) -> None:
        """m ← βm + (1 − β)g,  x ← (1 − tw)x − t ∇ψ*(v).

        Args:
            count: Number of the step, k + 1.
            x: Points.
            stored: Stored fields of the first point, in the order of the state, then those of the
                second point, and so on.
            g: Gradients.
        """
        method = self.method
        t = float(method.t(count))
        v = self._update_momenta(stored, g)
        if method.normalised:
            d = list(torch._foreach_mul(self.directions(v), self.directions.sizes))
        else:
            d = [mirror.to_primal(y[None])[0] for mirror, y in zip(self.maps, v, strict=True)]
        if method.decay:
            torch._foreach_mul_(x, 1 - t * method.decay)
        torch._foreach_add_(x, d, alpha=-t)

    def _update_momenta(self, m: Tensors, g: Tensors) -> Tensors:
        """Set m to m⁺ and return v."""
        method = self.method
        if method.lookahead and self.fused and kernels.has_moments(m, g):
            return kernels.momenta(m, g, method.momentum)
        torch._foreach_lerp_(m, g, 1 - method.momentum)
        if not method.lookahead:
            return m
        return list(torch._foreach_lerp(g, m, method.momentum))


class AdaptiveSteps(PreconditionedSteps):
    """Steps of :class:`AdaptivePreconditioned` in place on many tensors, each with its own map."""

    def __call__(self, count: int, x: Tensors, stored: Tensors, g: Tensors) -> None:
        """m, n and w as in ``update``,  x ← (1 − t·decay)x − t ℓ u/√(n/w)."""
        m = stored[0::3]
        n = stored[1::3]
        w = stored[2::3]
        t = float(self.method.t(count))
        v = self._update_momenta(m, g)
        self._move(x, n, w, v, [t * size for size in self.directions.sizes], t)

    def _move(
        self, x: Tensors, n: Tensors, w: Tensors, v: Tensors, steps: list[float], t: float
    ) -> None:
        """Update n and w, and move x by the given step sizes."""
        method = self.method
        beta = method.second_momentum
        u = self.directions(v)
        keep = 1 - t * method.decay
        if self.fused and kernels.has_moments(x, n, u):
            kernels.adaptive_step(x, n, w, u, steps, beta, keep, TINY)
            return
        torch._foreach_mul_([*n, *w], beta)
        torch._foreach_addcmul_(n, u, u, 1 - beta)
        torch._foreach_add_(w, 1 - beta)
        roots = torch._foreach_sqrt(n)
        torch._foreach_add_(roots, TINY)
        if method.decay:
            torch._foreach_mul_(x, keep)
        scaled = torch._foreach_mul(u, torch._foreach_sqrt(w))
        torch._foreach_addcdiv_(x, scaled, roots, [-step for step in steps])


class DampedSteps(AdaptiveSteps):
    """Steps of :class:`DampedPreconditioned` in place on many tensors, each with its own map."""

    def __call__(self, count: int, x: Tensors, stored: Tensors, g: Tensors) -> None:
        """m, n, w and q as in ``update``,  x ← (1 − t·decay)x − t r^η ℓ u/√(n/w)."""
        method = self.method
        m = stored[0::4]
        n = stored[1::4]
        w = stored[2::4]
        q = stored[3::4]
        t = float(method.t(count))
        v = self._update_momenta(m, g)
        squares = self._squared_norms(g)
        means = torch.lerp(squares, torch.stack(q), method.momentum)
        torch._foreach_copy_(q, list(means.unbind()))
        if method.lookahead:
            means = torch.lerp(squares, means, method.momentum)
        tiny = torch.finfo(means.dtype).tiny
        scaled = (method.momentum_weight(count) * means).clamp(min=tiny)
        ratios = (self._squared_norms(v) / scaled).clamp(max=1.0)
        factors = (ratios ** (method.damping / 2)).tolist()
        steps = [t * c * f for c, f in zip(self.directions.sizes, factors, strict=True)]
        self._move(x, n, w, v, steps, t)

    def _squared_norms(self, tensors: Tensors) -> Tensor:
        """Return the squared norm of each whole tensor."""
        squares = torch.stack(torch._foreach_norm(tensors)).square()
        if any(map(is_divided, self.maps)):
            parts = zip(self.maps, squares, strict=True)
            squares = torch.stack([mirror.sum_of_parts(square) for mirror, square in parts])
        return squares


SHARED_STEPS: dict[type[GradientMethod[Any]], type[PreconditionedSteps]] = {
    Preconditioned: PreconditionedSteps,
    AdaptivePreconditioned: AdaptiveSteps,
    DampedPreconditioned: DampedSteps,
}
"""Steps that share work between tensors, by the exact class of the method."""


def uses_kernels(method: GradientMethod[Any], mirror: MirrorMap) -> bool:
    """Return whether steps of a preconditioned method with this map can use C kernels.

    There are kernels for second moments, directions of matrices, and powers of entries.
    """
    if type(method) not in SHARED_STEPS:
        return False
    if isinstance(method, AdaptivePreconditioned) or type(unscaled(mirror)) is PNorm:
        return True
    return any(
        isinstance(part, SingularValues) and part.products is not None for part in mirror.modules()
    )


class UnitDirections:
    """Directions of many tensors, each with its own map, where similar maps share work.

    Maps are grouped and their scales are read at construction.

    Args:
        maps: Map of each tensor.
        fused: Whether C kernels are used.
    """

    def __init__(self, maps: Sequence[MirrorMap], fused: bool = False) -> None:
        self.fused = fused
        self.sizes = [mirror.direction_size for mirror in maps]
        """ℓ of each map (:attr:`MirrorMap.direction_size`)."""
        matrix_maps: list[MirrorMap] = []
        matrix_indices: list[int] = []
        other_indices: dict[MirrorMap, list[int]] = {}
        shared_indices: dict[Any, list[int]] = {}
        for i, mirror in enumerate(map(unscaled, maps)):
            group = shared_group(mirror)
            if group is not None:
                shared_indices.setdefault(group, []).append(i)
            elif is_approximated(mirror):
                matrix_maps.append(mirror)
                matrix_indices.append(i)
            else:
                other_indices.setdefault(mirror, []).append(i)
        self._groups: list[tuple[list[int], DirectionFunction]] = []
        if matrix_indices:
            function = partial(matrix_directions, matrix_maps, fused=fused)
            self._groups.append((matrix_indices, function))
        for mirror, indices in other_indices.items():
            self._groups.append((indices, direction_function(mirror, fused)))
        for indices in shared_indices.values():
            shared: list[Any] = [unscaled(maps[i]) for i in indices]
            owned = OwnedDirections(shared, partial(UnitDirections, fused=fused))
            self._groups.append((indices, owned))
        self._inner_sizes = {
            i: mirror.direction_size
            for mirror, indices in other_indices.items()
            if mirror.direction_size != 1
            for i in indices
        }

    def __call__(self, tensors: Tensors) -> Tensors:
        """Return the directions divided by ℓ, so that their entries have mean square 1.

        Args:
            tensors: One sample for each map, without the batch dimension.
        """
        result = list(tensors)
        for indices, directions in self._groups:
            group = directions([tensors[i] for i in indices])
            for i, direction in zip(indices, group, strict=True):
                result[i] = direction
        for i, size in self._inner_sizes.items():
            result[i] = result[i] / size
        return result


def is_divided(mirror: MirrorMap) -> bool:
    """Return whether processes hold parts of the tensor of a map."""
    return type(mirror).sum_of_parts is not MirrorMap.sum_of_parts


def unscaled(mirror: MirrorMap) -> MirrorMap:
    """Return the map inside a :class:`ScaledMap`, and any other map as it is."""
    return mirror.mirror if type(mirror) is ScaledMap else mirror


def is_approximated(mirror: MirrorMap) -> bool:
    """Return whether directions of a map of singular values are computed without decompositions."""
    return type(mirror) in _SPECTRAL and mirror.products is not None


def direction_function(mirror: MirrorMap, fused: bool = False) -> DirectionFunction:
    """Return the function that computes directions of several tensors under one map.

    Its argument is a list of tensors without the batch dimension.

    Args:
        mirror: A map.
        fused: Whether C kernels are used.
    """
    if is_approximated(mirror):
        return lambda tensors: matrix_directions([mirror] * len(tensors), tensors, fused)
    if type(mirror) is PNorm and fused:
        return partial(_power_directions, mirror)
    if _is_concatenable(mirror):
        return partial(_concatenated_directions, mirror)
    return partial(_single_directions, mirror)


def _single_directions(mirror: MirrorMap, tensors: Tensors) -> Tensors:
    return [mirror._direction(y[None])[0] for y in tensors]


def _power_directions(mirror: PNorm, tensors: Tensors) -> Tensors:
    """Return the directions of tensors under powers of their entries, by a kernel if possible."""
    if tensors and kernels.has_powers(tensors):
        return kernels.powers(tensors, 1 / (mirror.p - 1))
    return _concatenated_directions(mirror, tensors)


def _is_concatenable(mirror: MirrorMap) -> bool:
    """Return whether a map acts on every entry by itself, with the normalisation of MirrorMap."""
    cls = type(mirror)
    return (
        mirror.elementwise
        and not mirror.per_entry
        and cls._direction is MirrorMap._direction
        and cls._size is MirrorMap._size
    )


def _concatenated_directions(mirror: MirrorMap, tensors: Tensors) -> Tensors:
    """Return the directions of tensors under an elementwise map, applied to all entries at once."""
    if len(set(map(_dtype, tensors))) != 1 or len(set(map(_device, tensors))) != 1:
        return _single_directions(mirror, tensors)
    sizes = list(map(Tensor.numel, tensors))
    counts = _counts(tuple(sizes), tensors[0].device)
    flat = _divide_by_rms(torch.cat(list(map(Tensor.flatten, tensors))), tensors, counts)
    mapped = mirror._to_primal(flat[None])[0]
    directions = _divide_by_rms(mapped, torch.split(mapped, sizes), counts)
    pieces = torch.split(directions, sizes)
    return [d.view(y.shape) for d, y in zip(pieces, tensors, strict=True)]


def _divide_by_rms(flat: Tensor, pieces: Sequence[Tensor], counts: Tensor) -> Tensor:
    """Divide the pieces of a flat tensor by their root mean squares; 0 stays 0.

    Args:
        flat: Entries of all pieces.
        pieces: The pieces.
        counts: Number of entries of each piece.
    """
    roots = counts.clamp(min=1).to(torch.promote_types(flat.dtype, torch.float32)).sqrt()
    rms = (torch.stack(torch._foreach_norm(list(pieces))) / roots).to(flat.dtype)
    rms = rms.clamp(min=torch.finfo(flat.dtype).tiny)
    return flat / rms.repeat_interleave(counts, output_size=len(flat))


@lru_cache(maxsize=64)
def _counts(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return sizes as a tensor, cached because a copy to a GPU blocks until it is idle."""
    with torch.inference_mode(False):
        return torch.tensor(sizes, device=device)


def matrix_directions(maps: Sequence[Any], tensors: Tensors, fused: bool = False) -> Tensors:
    """Return the normalised directions of many tensors without decompositions.

    Args:
        maps: Map of each tensor, a :class:`SingularValues`.
        tensors: Tensors without the batch dimension.
        fused: Whether C kernels are used.
    """
    result = list(tensors)
    fits: dict[Any, Any] = {}  # maps of many tensors share their function of singular values
    groups: dict[Any, list[int]] = {}
    fit_of: list[Any] = []
    for i, (mirror, y) in enumerate(zip(maps, tensors, strict=True)):
        approximation = approximation_on(y.device)
        key = (approximation, mirror.inner, mirror.products)
        if key not in fits:
            fits[key] = mirror.fit(approximation)
        fit = fits[key]
        fit_of.append(fit)
        if not y.numel():
            continue
        poles = None
        if fused and approximation == "resolvents" and kernels.has_directions(y):
            poles = len(fit.shifts)
        groups.setdefault((approximation, y.dtype, y.device, poles), []).append(i)
    for (approximation, _, _, poles), indices in groups.items():
        group_fits = [fit_of[i] for i in indices]
        layouts = [maps[i].layout for i in indices]
        group = [layout.oriented(tensors[i]) for i, layout in zip(indices, layouts, strict=True)]
        if poles is not None:
            shapes = [layout.block_shape(y.shape) for layout, y in zip(layouts, group, strict=True)]
            directions = kernels.directions(group, group_fits, shapes)
        else:
            blocks = [matrix_blocks(maps[i], tensors[i][None]) for i in indices]
            combined = _normalised(combine_matrices(approximation, blocks, group_fits))
            directions = [
                direction.reshape(y.shape).to(y)
                for direction, y in zip(combined, group, strict=True)
            ]
        for i, layout, direction in zip(indices, layouts, directions, strict=True):
            result[i] = layout.oriented(direction).contiguous()
    return result


def _normalised(tensors: Tensors) -> Tensors:
    """Divide tensors of one dtype by the root mean squares of their entries; 0 stays 0."""
    norms = torch.stack(torch._foreach_norm(tensors))
    rms = norms / norms.new_tensor([d.numel() for d in tensors]).sqrt()
    return list(torch._foreach_div(tensors, list(torch.where(norms > 0, rms, 1.0).unbind())))
