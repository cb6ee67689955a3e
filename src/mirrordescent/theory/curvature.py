"""Measurements of a gradient field: curvature (Lanczos), symmetry, monotonicity and jumps."""

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

LANCZOS_STEPS = 20
"""Steps of Lanczos' method."""

SEGMENT_PIECES = 8
"""Pieces of a segment between two points in which jumps are searched for."""

HALVINGS = 16
"""Bisections of each piece in the search for a jump."""

ROUNDING = 1e3
"""Multiple of the machine epsilon below which a relative difference counts as rounding."""

_WHOLE_SPACE = WholeSpace()


def curvature_range(
    gradient: Gradient, points: Sequence[Tree], generator: Generator | None = None
) -> tuple[float, float]:
    """Return the smallest and the largest eigenvalue of ∇²h over all points and samples.

    Args:
        gradient: The gradient ∇h.
        points: Points to sample at.
        generator: Random generator for the start vectors of Lanczos' method.
    """
    eigenvalues = [extreme_eigenvalues(gradient, x, generator=generator) for x in points]
    smallest = min(float(low.min()) for low, _ in eigenvalues)
    largest = max(float(high.max()) for _, high in eigenvalues)
    return smallest, largest


def extreme_eigenvalues(
    gradient: Gradient, x: Tree, steps: int = LANCZOS_STEPS, generator: Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Estimate the smallest and the largest eigenvalue of H = ∇²h(x) per sample: (batch,) each.

    Lanczos' method builds an orthonormal basis V of span{v, Hv, H²v, …} for a random v, with full
    reorthogonalisation. The eigenvalues of VᵀHV lie between the extreme eigenvalues of H, which
    they approach first. A product with H is a backward pass through ∇h.

    If the Jacobian J of the field is not symmetric, and hence no Hessian, the products are with
    Jᵀ and the results are Rayleigh quotients of the symmetric part of J. Where H overflows, both
    results are infinite.

    Args:
        gradient: The gradient ∇h.
        x: Point, one per sample.
        steps: Largest dimension of the Krylov space.
        generator: Random generator for the start vectors.

    >>> import torch
    >>> curvatures = torch.tensor([1.0, 2.0, 5.0])
    >>> low, high = extreme_eigenvalues(lambda x: curvatures * x, torch.zeros(1, 3))
    >>> round(low.item(), 3), round(high.item(), 3)
    (1.0, 5.0)
    """
    generator = generator or torch.Generator().manual_seed(0)
    basis, images = _krylov_basis(transposed_jacobian(gradient, x), flatten(x), steps, generator)
    projected = basis @ images.mT
    symmetric = 0.5 * (projected + projected.mT)
    finite = projected.isfinite().flatten(1).all(1)
    eigenvalues = torch.linalg.eigvalsh(where(finite, symmetric, torch.zeros_like(projected)))
    eigenvalues = where(finite, eigenvalues, torch.full_like(eigenvalues, math.inf))
    return eigenvalues[:, 0], eigenvalues[:, -1]


def _krylov_basis(
    product: Callable[[Tensor], Tensor], flat: Tensor, steps: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Return orthonormal vectors of a Krylov space and their images: (batch, vectors, entries).

    If the Krylov space of a sample becomes invariant early, a random vector is added to it.
    """
    batch, size = flat.shape
    epsilon = torch.finfo(flat.dtype).eps
    basis = flat.new_zeros(batch, min(steps, size), size)
    images = torch.zeros_like(basis)
    v = _random_directions(flat, generator)
    for j in range(basis.shape[1]):
        basis[:, j] = v
        images[:, j] = product(v)
        v, remainder = _orthogonalise(images[:, j], basis[:, : j + 1])
        image_norm = torch.linalg.vector_norm(images[:, j], dim=1)
        invariant = remainder <= ROUNDING * epsilon * image_norm
        if invariant.all():
            # A random v has a part in every eigenspace, so all eigenvalues have been met.
            return basis[:, : j + 1], images[:, : j + 1]
        if invariant.any():
            fresh, _ = _orthogonalise(_random_directions(flat, generator), basis[:, : j + 1])
            v = torch.where(invariant[:, None], fresh, v)
    return basis, images


def potential_error(
    value: Callable[[Tree], Tensor], gradient: Gradient, x: Tree, domain: Domain = _WHOLE_SPACE
) -> float | None:
    """Return the largest ‖∇h(x) − g(x)‖ / max(‖∇h(x)‖, ‖g(x)‖), with ∇h by a backward pass.

    On a simplex, gradients are determined up to a constant, which is removed first.

    Args:
        value: The potential h.
        gradient: The field g that should be ∇h.
        x: Point, one per sample.
        domain: Domain of h.

    Returns:
        The largest relative difference over the samples, or None if h has no backward pass.
    """
    with torch.enable_grad():
        point = tree_map(lambda leaf: leaf.detach().requires_grad_(), x)
        total = value(point).sum()
        if not total.requires_grad:
            return None
        computed = torch.autograd.grad(
            total, list(leaves(point)), allow_unused=True, materialize_grads=True
        )
    stated = [leaf.detach() for leaf in leaves(gradient(x))]
    if isinstance(domain, Simplex):
        computed = tuple(_centred(leaf) for leaf in computed)
        stated = [_centred(leaf) for leaf in stated]
    first = torch.cat([leaf.flatten(1) for leaf in computed], 1)
    second = torch.cat([leaf.flatten(1) for leaf in stated], 1)
    error = torch.linalg.vector_norm(first - second, dim=1)
    size = torch.maximum(
        torch.linalg.vector_norm(first, dim=1), torch.linalg.vector_norm(second, dim=1)
    )
    return float((error / size.clamp(min=torch.finfo(first.dtype).tiny)).max())


def _centred(leaf: Tensor) -> Tensor:
    return leaf - leaf.mean(-1, keepdim=True)


def transposed_jacobian(gradient: Gradient, x: Tree) -> Callable[[Tensor], Tensor]:
    """Return v ↦ Jᵀv at x for flattened samples (batch, entries), one backward pass a product."""
    with torch.enable_grad():
        point = tree_map(lambda leaf: leaf.detach().requires_grad_(), x)
        value = gradient(point)
    inputs = list(leaves(point))
    outputs = list(leaves(value))
    sizes = [leaf[0].numel() for leaf in inputs]
    # Outputs without a graph are constant around x.
    varying = [i for i, output in enumerate(outputs) if output.requires_grad]
    if not varying:
        return torch.zeros_like

    def product(v: Tensor) -> Tensor:
        pieces = torch.split(v, sizes, 1)
        result = torch.autograd.grad(
            [outputs[i] for i in varying],
            inputs,
            [pieces[i].reshape(outputs[i].shape) for i in varying],
            retain_graph=True,
            materialize_grads=True,
        )
        return torch.cat([leaf.flatten(1) for leaf in result], 1)

    return product


def asymmetry(gradient: Gradient, x: Tree, generator: Generator | None = None) -> float:
    """Return the largest |⟨v, Jᵀw⟩ − ⟨w, Jᵀv⟩| / (‖Jᵀv‖ + ‖Jᵀw‖) for random unit v and w.

    It is 0 if the field is the gradient of a function.
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
    """Return min ⟨∇h(a) − ∇h(b), a − b⟩ / ‖a − b‖² over consecutive points.

    A negative result shows that ∇h is not monotone.
    """
    smallest = math.inf
    for a, b in pairwise(points):
        step = difference(a, b)
        change = difference(gradient(a), gradient(b))
        squared_length = dot(step, step)
        secant = torch.where(squared_length > 0, dot(step, change) / squared_length, math.inf)
        smallest = min(smallest, float(secant.min()))
    return smallest


def secant_scale(gradient: Gradient, points: Sequence[Tree]) -> float:
    """Return max (‖∇h(a)‖ + ‖∇h(b)‖) / ‖a − b‖ over consecutive points.

    Secants cannot be larger, and their rounding errors are proportional to it.
    """
    largest = 0.0
    for a, b in pairwise(points):
        length = norm(difference(a, b))
        size = norm(gradient(a)) + norm(gradient(b))
        largest = max(largest, float(torch.where(length > 0, size / length, 0.0).max()))
    return largest


@torch.no_grad()
def has_jump(gradient: Gradient, points: Sequence[Tree]) -> bool:
    """Search for a jump of ∇h on the segments between consecutive points.

    Each segment is cut into pieces, and each piece is bisected towards the half over which ∇h
    changes more. If ∇h is Lipschitz, every bisection halves the change; at a jump the change stays.
    A jump that is small compared with the slopes around it may be missed.
    """
    for a, b in pairwise(points):
        cuts = [mix(i / SEGMENT_PIECES, b, a) for i in range(SEGMENT_PIECES + 1)]
        if any(_jumps_between(gradient, start, end) for start, end in pairwise(cuts)):
            return True
    return False


def _jumps_between(gradient: Gradient, a: Tree, b: Tree) -> bool:
    """Bisect a segment towards the larger change of ∇h; tell whether the change stops shrinking."""
    gradient_a = gradient(a)
    gradient_b = gradient(b)
    changes = []
    for _ in range(HALVINGS):
        middle = mix(0.5, a, b)
        gradient_middle = gradient(middle)
        first_half = norm(difference(gradient_a, gradient_middle))
        second_half = norm(difference(gradient_middle, gradient_b))
        keep_first = first_half >= second_half
        a = where(keep_first, a, middle)
        gradient_a = where(keep_first, gradient_a, gradient_middle)
        b = where(keep_first, middle, b)
        gradient_b = where(keep_first, gradient_middle, gradient_b)
        changes.append(norm(difference(gradient_a, gradient_b)))
    last_change = changes[-1]
    constant = last_change > 0.5 * changes[HALVINGS * 3 // 4]
    rounding = ROUNDING * torch.finfo(last_change.dtype).eps * (changes[0] + norm(gradient_a))
    return bool((constant & (last_change > rounding)).any())


def flatten(tree: Tree) -> Tensor:
    """Return all entries of each sample in one row: (batch, entries)."""
    return torch.cat([leaf.flatten(1) for leaf in leaves(tree)], 1)


def _random_directions(like: Tensor, generator: Generator) -> Tensor:
    """Return random unit vectors, one per sample."""
    drawn = torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype)
    return F.normalize(drawn.to(like.device), dim=1)


def _orthogonalise(v: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return the normalised part of v orthogonal to a basis, and the length of that part.

    The projection is removed twice, which is enough for orthogonality to rounding.
    """
    for _ in range(2):
        v = v - (basis.mT @ (basis @ v[..., None]))[..., 0]
    length = torch.linalg.vector_norm(v, dim=1)
    return v / torch.where(length > 0, length, 1)[:, None], length
