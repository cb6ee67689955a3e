"""Maps of matrices that are functions of their singular values, and commute with rotations."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from mirrordescent import kernels
from mirrordescent._internal.derived import version_of
from mirrordescent.domains import Box, Domain, WholeSpace
from mirrordescent.mirrors import products, resolvents
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity, unit
from mirrordescent.mirrors.norms import PNorm
from mirrordescent.mirrors.odd import SoftSign
from mirrordescent.mirrors.products import SIGN
from mirrordescent.parts import Config

Form: TypeAlias = Literal["products", "resolvents"]
"""Name of an approximation of directions."""

FORMS: dict[Form, Any] = {"products": products, "resolvents": resolvents}
"""Modules with the functions ``fitted`` and ``combined``, by the name of the approximation."""


class MatrixLayout(NamedTuple):
    """How a tensor is read as one or several matrices.

    The first ``row_axes`` axes of the tensor, flattened, are rows, and the others are columns. The
    rows are divided into ``parts`` blocks, each of which is a matrix of its own.

    Args:
        parts: Number of blocks of rows.
        row_axes: Number of leading axes that are rows.
        transposed: Whether a tensor with two axes is transposed first, so that ``parts`` divides
            its columns.
    """

    parts: int = 1
    row_axes: int = 1
    transposed: bool = False

    def oriented(self, x: Tensor) -> Tensor:
        """Return the tensor, or samples of it, in the orientation in which rows are divided.

        The same call on the result returns the original.
        """
        return x.mT if self.transposed else x

    def block_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the number of matrices, and their rows and columns, of an oriented tensor."""
        rows = math.prod(shape[: self.row_axes])
        if rows % self.parts:
            raise ValueError(
                f"{rows} rows cannot be divided into {self.parts} blocks: change parts"
            )
        columns = math.prod(shape[self.row_axes :])
        return self.parts, rows // self.parts, columns


class SingularValues(MirrorMap):
    """ψ(X) = φ(σ(X)), with the symmetric potential φ of an inner map.

    .. code-block:: none

        X = U diag(σ) Vᵀ,    ∇ψ(X) = U diag(∇φ(σ)) Vᵀ,    ∇ψ*(Y) = U diag(∇φ*(σ)) Vᵀ,    ψ* = φ* ∘ σ

    Convexity, constants in ℓ₂ and the conjugate are those of φ (von Neumann; Lewis, J. Convex Anal.
    1995). The map commutes with rotations, ∇ψ(PXQᵀ) = P ∇ψ(X) Qᵀ, of which permutations of hidden
    units are a special case.

    Every tensor is treated as a matrix, with its first axis as rows: (out, in) for a dense layer,
    (out, in·k·k) for a convolution, and n × 1 for a vector, whose only singular value is its norm.

    Singular vectors come from the Gram matrix of the smaller side (``eigh``, in double precision),
    and singular values from the lengths of the projected rows, which keeps the digits of small
    ones. Derivatives through the vectors need distinct singular values.

    With ``products``, :meth:`direction` needs no decomposition. It combines Newton–Schulz steps
    with weights fitted to ∇φ* (:mod:`~mirrordescent.mirrors.products`). On CPUs it combines two or
    three inverses instead, which is faster and more accurate
    (:mod:`~mirrordescent.mirrors.resolvents`). ∇ψ and ∇ψ* stay exact.

    Args:
        inner: Map with ``symmetric = True``, such as :class:`PNorm`, :class:`SquaredPNorm`,
            :class:`HyperbolicEntropy`, :class:`SoftSign` or
            :class:`~mirrordescent.mirrors.odd.Saturating`.
        parts: Number of blocks of rows, each a matrix of its own: the groups of a grouped
            convolution, the heads of an attention layer, the gates of a recurrent layer.
        products: Number of polynomials for :meth:`direction`: 3, 4 or 5, for singular values down
            to 0.03, 0.01 or 0.003 of ‖X‖₄ (Schatten). For powers, both approximations are within
            15 % of ∇φ* there, and usually much closer. They are not equal, so directions differ a
            little between devices. None means exact directions.

    >>> import torch
    >>> from mirrordescent.mirrors import PNorm
    >>> X = torch.tensor([[[0.0, 2.0], [-3.0, 0.0]]])
    >>> SingularValues(PNorm(3.0)).to_dual(X)  # σ², with the vectors of X
    tensor([[[ 0.,  4.],
             [-9.,  0.]]])
    """

    def __init__(
        self,
        inner: MirrorMap,
        parts: int = 1,
        products: int | None = None,
        row_axes: int = 1,
        transposed: bool = False,
    ) -> None:
        super().__init__()
        if not inner.symmetric:
            raise TypeError(
                "the inner map must be symmetric to act on singular values, "
                f"which {type(inner).__name__} is not"
            )
        if parts < 1 or row_axes < 1 or products not in (None, *SIGN):
            raise ValueError(
                f"parts and row_axes must be at least 1 and products None or one of {list(SIGN)}, "
                f"got {parts}, {row_axes} and {products}"
            )
        self.inner = inner
        self.parts = parts
        self.products = products
        self.row_axes = row_axes
        self.transposed = transposed
        self.layout = MatrixLayout(parts, row_axes, transposed)
        self.exact = inner.exact
        self.proven = inner.proven
        self.certified = inner.certified
        self.defined_on_boundary = inner.defined_on_boundary
        self.primal_domain = _domain_of_matrices(inner.primal_domain, self.layout)
        self.dual_domain = _domain_of_matrices(inner.dual_domain, self.layout)
        self._fitted: dict[Form, tuple[Any, Any]] = {}

    @property
    def strong_convexity(self) -> StrongConvexity | None:
        """Strong convexity of φ, in the Frobenius norm."""
        stated = self.inner.strong_convexity
        return stated if stated is None or stated.p == 2 else None

    @property
    def smoothness(self) -> float | None:
        return self.inner.smoothness

    @property
    def continuous(self) -> bool | None:
        return self.inner.continuous

    def with_layout(self, layout: MatrixLayout) -> SingularValues:
        """Return the map for tensors that are read in another way; both share the inner map."""
        if layout == self.layout:
            return self
        return SingularValues(self.inner, layout.parts, self.products, *layout[1:])

    def _potential(self, x: Tensor) -> Tensor:
        singular = singular_values(as_matrices(x, self.layout))
        return self.inner._potential(singular).reshape(len(x), -1).sum(1)

    def _to_dual(self, x: Tensor) -> Tensor:
        return of_singular_values(x, self.inner._to_dual, self.layout)

    def _to_primal(self, y: Tensor) -> Tensor:
        return of_singular_values(y, self.inner._to_primal, self.layout)

    def _size(self, y: Tensor) -> Tensor:
        """‖y‖₄ (Schatten) of every block."""
        X = as_matrices(y, self.layout).to(torch.promote_types(y.dtype, torch.float64))
        gram = X @ X.mT if X.shape[-2] <= X.shape[-1] else X.mT @ X
        size = torch.linalg.vector_norm(gram, dim=(-2, -1)).sqrt().to(y.dtype)
        rows = size.reshape(len(y), self.parts, 1).expand(-1, -1, X.shape[-2])
        shape = self.layout.oriented(y).shape
        lead = shape[: 1 + self.row_axes]
        return self.layout.oriented(rows.reshape(*lead, *[1] * (len(shape) - len(lead))))

    def _direction(self, y: Tensor) -> Tensor:
        learning = torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())
        if self.products is None or learning:
            return super()._direction(y)
        if not y.numel():
            return y
        form = approximation_on(y.device)
        fit = self.fit(form)
        oriented = self.layout.oriented(y)
        blocks = self.layout.block_shape(oriented.shape[1:])
        has_kernel = kernels.available() and kernels.has_directions(oriented[0])
        if form == "resolvents" and has_kernel:
            samples = list(oriented)
            count = len(samples)
            found = torch.stack(kernels.directions(samples, [fit] * count, [blocks] * count))
            return self.layout.oriented(found)
        (combination,) = combine_matrices(form, [matrix_blocks(self, y)], [fit])
        combined = self.layout.oriented(combination.reshape(oriented.shape))
        return unit(combined.to(y.dtype))

    def fit(self, form: Form) -> Any:
        """Return the fit of an approximation to ∇φ*, cached until the inner map changes."""
        tensors = (*self.inner.parameters(), *self.inner.buffers())
        versions = [(id(tensor), version_of(tensor)) for tensor in tensors]
        if form not in self._fitted or self._fitted[form][0] != versions:
            self._fitted[form] = versions, FORMS[form].fitted(self._slope, self.products)
        return self._fitted[form][1]

    @torch.no_grad()
    def _slope(self, s: Tensor) -> Tensor:
        """∇φ* of single numbers, (n,)."""
        column = s[:, None].to(_parameter_dtype(self.inner, s.dtype))
        return self.inner._to_primal(column)[:, 0].to(s)

    def config(self) -> Config:
        config: Config = {"inner": self.inner, "parts": self.parts, "products": self.products}
        if self.row_axes != 1:
            config["row_axes"] = self.row_axes
        if self.transposed:
            config["transposed"] = True
        return config


class SpectralPower(SingularValues):
    """ψ*(Y) = ‖Y‖_{1+p}^{1+p}/(1+p) in the Schatten norm:  ∇ψ*(Y) = U diag(σᵖ) Vᵀ.

    ∇ψ(X) = U diag(σ^{1/p}) Vᵀ. p = 1 is the Euclidean geometry. As p → 0, ∇ψ*(Y) tends to the polar
    factor UVᵀ, which has no inverse. p = 0 means the damped polar factor U diag(σ/√(σ² + δ²)) Vᵀ
    (:class:`SoftSign`), whose inverse exists if all σ < 1.

    Args:
        p: Power p ≥ 0.
        damping: Damping δ for p = 0.
        parts, products: See :class:`SingularValues`.

    >>> import torch
    >>> SpectralPower(0.5).to_primal(torch.diag(torch.tensor([4.0, 9.0]))[None])
    tensor([[[2., 0.],
             [0., 3.]]])
    """

    def __init__(
        self, p: float, damping: float = 1e-3, parts: int = 1, products: int | None = None
    ) -> None:
        if not 0 <= p < float("inf"):
            raise ValueError(f"SpectralPower needs 0 ≤ p < ∞, got {p}")
        super().__init__(PNorm(1 + 1 / p) if p else SoftSign(damping), parts, products)
        self.p = float(p)
        self.damping = float(damping)

    def config(self) -> Config:
        return {
            "p": self.p,
            "damping": self.damping,
            "parts": self.parts,
            "products": self.products,
        }


class SpectralBall(Domain):
    """{X : σ₁(X) < radius}, for every block of rows.

    Args:
        radius: Bound on the singular values.
        parts, row_axes, transposed: See :class:`MatrixLayout`.
    """

    bounded = True

    def __init__(
        self, radius: float, parts: int = 1, row_axes: int = 1, transposed: bool = False
    ) -> None:
        self.radius = float(radius)
        self.parts = parts
        self.row_axes = row_axes
        self.transposed = transposed
        self.layout = MatrixLayout(parts, row_axes, transposed)
        self.description = f"all singular values below {radius:g}"

    def _contains(self, x: Tensor, closed: bool) -> Tensor:
        largest = singular_values(as_matrices(x, self.layout)).amax(-1).reshape(len(x), -1)
        return largest <= self.radius * (1 + 1e-5) if closed else largest < self.radius

    def _project(self, x: Tensor) -> Tensor:
        return of_singular_values(x, lambda s: s.clamp(max=self.radius), self.layout)

    def _inner_point(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)


ONE_MATRIX = MatrixLayout()
"""The first axis against all others."""


def as_matrices(x: Tensor, layout: MatrixLayout = ONE_MATRIX) -> Tensor:
    """Return samples (batch, …) as matrices (batch · parts, rows, columns).

    Numbers and vectors become columns.
    """
    x = layout.oriented(x)
    _, rows, columns = layout.block_shape(x.shape[1:])
    return x.reshape(len(x) * layout.parts, rows, columns)


def of_singular_values(x: Tensor, function: Any, layout: MatrixLayout = ONE_MATRIX) -> Tensor:
    """Return U diag(f(σ)) Vᵀ, for a function f with f(0) = 0.

    Args:
        x: Samples (batch, out, …).
        function: Function f, which maps (batch, count) to the same shape.
        layout: How samples are read as matrices.
    """
    X = as_matrices(x, layout)
    tall = X.shape[-2] > X.shape[-1]
    X = (X.mT if tall else X).to(torch.promote_types(x.dtype, torch.float64))
    U = torch.linalg.eigh(X @ X.mT)[1]
    rows = U.mT @ X  # orthogonal rows, whose lengths are the singular values
    sigma = torch.linalg.vector_norm(rows, dim=-1)
    positive = sigma > 0
    mapped = function(sigma.to(x.dtype)).to(sigma)
    factors = torch.where(positive, mapped, 0.0) / torch.where(positive, sigma, 1.0)
    result = U @ (factors[..., None] * rows)
    matrices = result.mT if tall else result
    return layout.oriented(matrices.reshape(layout.oriented(x).shape)).to(x.dtype)


def singular_values(X: Tensor) -> Tensor:
    """Return the singular values of matrices, (batch, smaller side).

    Derivatives at 0 are finite.
    """
    wide = X if X.shape[-2] <= X.shape[-1] else X.mT
    wide = wide.to(torch.promote_types(X.dtype, torch.float64))
    squares = torch.linalg.eigvalsh(wide @ wide.mT)
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0).to(X.dtype)


def matrix_blocks(mirror: SingularValues, y: Tensor) -> Tensor:
    """Return samples as matrices, in the precision of the computation."""
    return as_matrices(y, mirror.layout).to(_compute_dtype(y))


def approximation_on(device: torch.device) -> Form:
    """Return the approximation of directions that is fast on a device."""
    return "resolvents" if device.type == "cpu" else "products"


def combine_matrices(form: Form, blocks: list[Tensor], fits: list[Any]) -> list[Tensor]:
    """Return U diag(h(σ)) Vᵀ of matrices, in their own precision even under autocast."""
    with torch.autocast(blocks[0].device.type, enabled=False):
        return list(FORMS[form].combined(blocks, fits))


def _domain_of_matrices(domain: Domain, layout: MatrixLayout) -> Domain:
    """Return the domain of matrices whose singular values lie in the domain of the inner map."""
    if isinstance(domain, Box) and domain.lower == -domain.upper:
        return SpectralBall(domain.upper, *layout)
    if not isinstance(domain, WholeSpace):
        raise TypeError(
            "the domain of the inner map must be all of Rⁿ or a box [−r, r], "
            f"got {domain.description}"
        )
    return domain


def _compute_dtype(y: Tensor) -> torch.dtype:
    """Return the type to compute in; half precision is too coarse for Gram matrices."""
    return torch.promote_types(y.dtype, torch.float32)


def _parameter_dtype(mirror: MirrorMap, default: torch.dtype) -> torch.dtype:
    return next((p.dtype for p in mirror.parameters()), default)
