"""What can be measured of a gradient field: its curvature by Lanczos' method, symmetry,
monotonicity, jumps.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mirrordescent.domains import Domain, Simplex, WholeSpace
from mirrordescent.theory.geometry import difference
from mirrordescent.trees import Tree, dot, leaves, mix, norm, tree_map, where

Gradient: TypeAlias = Callable[[Tree], Tree]
STEPS = 20  # of Lanczos' method
# of a segment, in search of a jump
PIECES = 8
HALVINGS = 16
ROUNDING = 1e3  # times the machine epsilon: what is smaller is taken for rounding
_EVERYWHERE = WholeSpace()


def curvature_range(
    gradient: Gradient, points: Sequence[Tree], generator: Generator | None = None
) -> tuple[float, float]:
    """Return the smallest and the largest eigenvalue of the Jacobian of a gradient, over all points
    and samples.
    """
    found = [extreme_eigenvalues(gradient, x, generator=generator) for x in points]
    return min(float(low.min()) for low, _ in found), max(float(high.max()) for _, high in found)


def extreme_eigenvalues(
    gradient: Gradient, x: Tree, steps: int = STEPS, generator: Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Return estimates of the extreme eigenvalues of ∇²h(x) per sample, given ∇h: two of shape
    (batch,).

    Lanczos' method: an orthonormal basis V of span{v, Hv, H²v, …} for a random v, fully
    reorthogonalised, and the eigenvalues of VᵀHV, which lie between the extremes of H and approach
    them first. Products with H are backward passes through ∇h. If the Jacobian J is not symmetric,
    so that it is no Hessian, they are those of Jᵀ, and what is returned are Rayleigh quotients of
    its symmetric part. Where H overflows both are infinite.

    >>> import torch
    >>> low, high = extreme_eigenvalues(lambda x: torch.tensor([1.0, 2.0, 5.0]) * x, torch.zeros(1, 3))
    >>> round(low.item(), 3), round(high.item(), 3)
    (1.0, 5.0)
    """
    generator = generator or torch.Generator().manual_seed(0)
    product = transposed_jacobian(gradient, x)
    flat = flatten(x)
    count, size = flat.shape
    basis, images = (flat.new_zeros(count, min(steps, size), size) for _ in range(2))
    v = _random_directions(flat, generator)
    for j in range(basis.shape[1]):
        basis[:, j] = v
        images[:, j] = product(v)
        v, left = _orthogonalised(images[:, j], basis[:, : j + 1])
        invariant = left <= ROUNDING * torch.finfo(flat.dtype).eps * torch.linalg.vector_norm(
            images[:, j], dim=1
        )
        if invariant.all():
            # A random v has a part in every eigenspace, so all eigenvalues have been met.
            basis = basis[:, : j + 1]
            images = images[:, : j + 1]
            break
        if invariant.any():
            fresh, _ = _orthogonalised(_random_directions(flat, generator), basis[:, : j + 1])
            v = torch.where(invariant[:, None], fresh, v)
    projected = basis @ images.mT
    finite = projected.isfinite().flatten(1).all(1)
    eigenvalues = torch.linalg.eigvalsh(
        where(finite, 0.5 * (projected + projected.mT), torch.zeros_like(projected))
    )
    eigenvalues = where(finite, eigenvalues, torch.full_like(eigenvalues, math.inf))
    return eigenvalues[:, 0], eigenvalues[:, -1]


def potential_error(
    value: Callable[[Tree], Tensor], gradient: Gradient, x: Tree, domain: Domain = _EVERYWHERE
) -> float | None:
    """Return the largest ‖∇h(x) − g(x)‖ relative to the larger of both, with ∇h by a backward pass;
    None without one.

    On a simplex gradients are determined up to a constant, which is taken off.
    """
    with torch.enable_grad():
        point = tree_map(lambda leaf: leaf.detach().requires_grad_(), x)
        total = value(point).sum()
        if not total.requires_grad:
            return None
        found = torch.autograd.grad(
            total, list(leaves(point)), allow_unused=True, materialize_grads=True
        )
    pairs = [(a, b.detach()) for a, b in zip(found, leaves(gradient(x)), strict=True)]
    if isinstance(domain, Simplex):
        pairs = [(a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)) for a, b in pairs]
    ours, theirs = (
        torch.cat([each.flatten(1) for each in side], 1) for side in zip(*pairs, strict=True)
    )
    difference, one, other = (
        torch.linalg.vector_norm(v, dim=1) for v in (ours - theirs, ours, theirs)
    )
    size = torch.maximum(one, other).clamp(min=torch.finfo(ours.dtype).tiny)
    return float((difference / size).max())


def transposed_jacobian(gradient: Gradient, x: Tree) -> Callable[[Tensor], Tensor]:
    """Return v ↦ Jᵀv at x, for flattened samples (batch, entries), by one backward pass each."""
    with torch.enable_grad():
        point = tree_map(lambda leaf: leaf.detach().requires_grad_(), x)
        value = gradient(point)
    inputs = list(leaves(point))
    outputs = list(leaves(value))
    sizes = [leaf[0].numel() for leaf in inputs]
    varying = [
        i for i, output in enumerate(outputs) if output.requires_grad
    ]  # the others are constant around x
    if not varying:
        return torch.zeros_like

    def product(v: Tensor) -> Tensor:
        pieces = torch.split(v, sizes, 1)
        some = [outputs[i] for i in varying]
        vectors = [pieces[i].reshape(outputs[i].shape) for i in varying]
        found = torch.autograd.grad(
            some, inputs, vectors, retain_graph=True, materialize_grads=True
        )
        return torch.cat([leaf.flatten(1) for leaf in found], 1)

    return product


def asymmetry(gradient: Gradient, x: Tree, generator: Generator | None = None) -> float:
    """|⟨v, Jᵀw⟩ − ⟨w, Jᵀv⟩| / (‖Jᵀv‖ + ‖Jᵀw‖) for random unit v, w, the largest: 0 for the gradient
    of a function.
    """
    generator = generator or torch.Generator().manual_seed(0)
    product = transposed_jacobian(gradient, x)
    flat = flatten(x)
    v = _random_directions(flat, generator)
    w = _random_directions(flat, generator)
    Jv = product(v)
    Jw = product(w)
    skew = (dot(v, Jw) - dot(w, Jv)).abs()
    scale = norm(Jv) + norm(Jw)
    return float(torch.where(scale > 0, skew / scale, 0).max())


@torch.no_grad()
def smallest_secant(gradient: Gradient, points: Sequence[Tree]) -> float:
    """Return min ⟨∇h(a) − ∇h(b), a − b⟩ / ‖a − b‖² over neighbouring points: negative if ∇h is not
    monotone.
    """
    smallest = math.inf
    for a, b in pairwise(points):
        step = difference(a, b)
        change = difference(gradient(a), gradient(b))
        length = dot(step, step)
        smallest = min(
            smallest, float(torch.where(length > 0, dot(step, change) / length, math.inf).min())
        )
    return smallest


@torch.no_grad()
def any_jumps(gradient: Gradient, points: Sequence[Tree]) -> bool:
    """Tell whether a gradient is found to jump between neighbouring points.

    Pieces of each segment are halved again and again, towards the half over which ∇h changes more.
    If ∇h is Lipschitz, the change is halved too; at a jump it stays. A jump that is small beside
    the slopes around it may be missed.
    """
    segments = ([mix(i / PIECES, b, a) for i in range(PIECES + 1)] for a, b in pairwise(points))
    return any(_jumps(gradient, *piece) for ends in segments for piece in pairwise(ends))


def _jumps(gradient: Gradient, a: Tree, b: Tree) -> bool:
    at_a = gradient(a)
    at_b = gradient(b)
    changes = []
    for _ in range(HALVINGS):
        middle = mix(0.5, a, b)
        at_middle = gradient(middle)
        left = norm(difference(at_a, at_middle)) >= norm(difference(at_middle, at_b))
        a = where(left, a, middle)
        at_a = where(left, at_a, at_middle)
        b = where(left, middle, b)
        at_b = where(left, at_middle, at_b)
        changes.append(norm(difference(at_a, at_b)))
    stays = changes[-1] > 0.5 * changes[HALVINGS * 3 // 4]
    rounding = ROUNDING * torch.finfo(changes[0].dtype).eps * (1 + norm(at_a))
    return bool((stays & (changes[-1] > rounding)).any())


def flatten(tree: Tree) -> Tensor:
    """Return all entries of each sample in one row: (batch, entries)."""
    return torch.cat([leaf.flatten(1) for leaf in leaves(tree)], 1)


def _random_directions(like: Tensor, generator: Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype)
    return F.normalize(drawn.to(like.device), dim=1)


def _orthogonalised(v: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit vector of v's part orthogonal to a basis, and that part's length: twice is
    enough.
    """
    for _ in range(2):
        v = v - (basis.mT @ (basis @ v[..., None]))[..., 0]
    length = torch.linalg.vector_norm(v, dim=1)
    return v / torch.where(length > 0, length, 1)[:, None], length
