"""The interface of every problem, and any user function as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mirrordescent.domains import Domain, WholeSpace
from mirrordescent.parts import Part
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.trees import Tree, leaves, tree_map


class Pixels(NamedTuple):
    """The data of f(x) = s·(‖Z(x − y)‖² + λ‖Dx‖₁), for kernels; the fidelity's curvature is 2s, the kink sλ.

    ``low`` and ``high`` are the ends of a box that holds the minimisers, one of each for every plane.
    """

    y: Tensor
    mask: Tensor | None
    low: Tensor
    high: Tensor
    fidelity: float
    kink: float


class Problem(Part, nn.Module):
    """A batch of problems min f(x): value and gradient of every one at once.

    Data are buffers, so ``problem.double()`` and ``problem.to(device)`` do what they say. A problem
    whose data are shared has ``batch = None`` and takes any batch of points. To add a problem,
    write ``value`` and ``grad`` and pass the shapes to ``__init__``; the optional methods below
    make more oracles, methods, certificates and theorems usable.
    """

    kind = "problem"

    convex: bool | None = None
    """Whether f is convex by construction; None: it is not known."""

    domain: Domain = WholeSpace()
    """Where the minimum is sought. A start outside is refused, and an iterate outside ends a sample's solve."""

    def __init__(self, batch: int | None, sample_shape: tuple[int, ...] | None) -> None:
        super().__init__()
        if batch == 0:
            raise ValueError(f"{type(self).__name__} needs at least one problem, got an empty batch")
        self.batch, self.sample_shape = batch, sample_shape

    def value(self, x: Tree) -> Tensor:
        """f(x) per sample: (batch,)."""
        raise NotImplementedError

    def grad(self, x: Tree) -> Tree:
        """∇f(x), or one subgradient, in the shape of x."""
        raise NotImplementedError

    @property
    def terms(self) -> int | None:
        """How many summands f has that can be sampled; None if it is not such a sum."""
        return None

    def grad_of_terms(self, x: Tree, subset: Tensor) -> Tree:
        """Return the estimate of ∇f(x) from the terms with these indices, unbiased for a random subset."""
        raise TypeError(f"{type(self).__name__} is not a finite sum")

    def smoothed_grad(self, x: Tree, width: float | Tensor) -> Tree:
        """Return the gradient of f with its kinks rounded over a width."""
        raise TypeError(f"{type(self).__name__} has no smoothed gradient")

    def bound_from_means(self, gradient: Tree, x: Tree) -> Tensor | None:
        """Return a lower bound on min f from like means of gradients and of their points, if there is one."""
        return None

    @property
    def kink(self) -> float | None:
        """The h of kinks h|d|, if they all have the same; None if it is not known."""
        return None

    def smoothness(self) -> float | None:
        """L_f, a Lipschitz constant of ∇f in ℓ₂ for the whole batch: infinite where f has kinks; None: not known."""
        return None

    def strong_convexity(self) -> float | None:
        """μ ≥ 0 such that f − (μ/2)‖x‖² is convex, for the whole batch; None: not known."""
        return None

    @property
    def bounded_gradients(self) -> bool:
        """Whether ‖∇f‖ is known to be bounded on the whole domain."""
        return self.domain.bounded

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """Return minimisers and lower bounds, (batch, …) and (batch,), if the problem has a way of its own to them."""
        return None

    def saddle_point(self) -> SaddlePoint | None:
        """Return the form F(x) + G(Kx), if the problem has one."""
        return None

    def pixels(self) -> Pixels | None:
        """Return the data that kernels for total variation work on, if they are made for this problem."""
        return None

    def start(self, batch: int | None = None) -> Tree:
        """Return a sensible first point inside the domain: 0, or the centre of a simplex or box."""
        if self.sample_shape is None:
            raise ValueError(f"{type(self).__name__} does not know the shape of its points: give x0")
        count = self.batch or batch or 1
        like = next(self.buffers(), torch.empty(0))
        shaped = torch.empty(count, *self.sample_shape, dtype=like.dtype, device=like.device)
        return self.domain.inner_point(shaped)

    def check(self, x: Tree, name: str = "x0") -> None:
        """Raise unless x is a finite batch of points of this problem."""
        if not isinstance(x, (Tensor, dict)):
            raise TypeError(f"{name} must be a tensor or a dict of tensors, got {type(x).__name__}")
        if isinstance(x, dict) and not x:
            raise ValueError(f"{name} is an empty dict")
        if isinstance(x, dict) and self.sample_shape is not None:
            raise TypeError(f"{name} must be a tensor for {type(self).__name__}, got a dict")
        sizes = set()
        for leaf in leaves(x):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                raise TypeError(f"{name} must be made of floating-point tensors")
            if leaf.ndim == 0 or leaf.shape[0] == 0:
                raise ValueError(f"{name} has shape {tuple(leaf.shape)}: it needs a non-empty leading batch dimension")
            sizes.add(leaf.shape[0])
            if not bool(leaf.isfinite().all()):
                raise ValueError(f"{name} has NaN or infinite entries")
            self._check_kind(leaf, name)
        if len(sizes) > 1:
            raise ValueError(f"the leaves of {name} disagree on the batch size: {sorted(sizes)}")
        if self.sample_shape is not None and isinstance(x, Tensor):
            self._check_shape(x, name)
        if not isinstance(self.domain, WholeSpace):
            self.domain.require(x, name, type(self).__name__, closed=True)

    def _check_shape(self, x: Tensor, name: str) -> None:
        assert self.sample_shape is not None
        wanted = (self.batch or x.shape[0], *self.sample_shape)
        if tuple(x.shape) != wanted:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, but {type(self).__name__} needs (batch, …) = {wanted}"
            )

    def _check_kind(self, leaf: Tensor, name: str) -> None:
        data = next((b for b in self.buffers() if b.is_floating_point()), None)
        if data is not None and leaf.dtype != data.dtype:
            raise TypeError(f"{name} is {leaf.dtype}, but the data of {type(self).__name__} are {data.dtype}")
        if data is not None and leaf.device != data.device:
            raise TypeError(f"{name} is on {leaf.device}, but {type(self).__name__} is on {data.device}")


class Function(Problem):
    """Any function as a problem, with its gradient by automatic differentiation.

    ``function`` maps a batch of points to one number each, (batch, …) → (batch,), sample by sample.

    >>> import torch
    >>> problem = Function(lambda x: (x - 1).square().sum(-1))
    >>> problem.grad(torch.zeros(1, 2))
    tensor([[-2., -2.]])
    """

    def __init__(self, function: Callable[..., Tensor], domain: Domain | None = None) -> None:
        super().__init__(None, None)
        self.function = function
        self.domain = domain or self.domain

    def value(self, x: Tree) -> Tensor:
        """function(x)."""
        value = self.function(x)
        batch = next(leaves(x)).shape[0]
        if value.shape != (batch,):
            raise ValueError(
                f"the function returned shape {tuple(value.shape)} for {batch} points: it must be ({batch},)"
            )
        return value

    def grad(self, x: Tree) -> Tree:
        """Differentiate the function; inside an autograd graph the result can be differentiated again."""
        keep_graph = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves(x))
        with torch.enable_grad():
            points = x if keep_graph else tree_map(lambda leaf: leaf.detach().requires_grad_(), x)
            grads = torch.autograd.grad(self.value(points).sum(), list(leaves(points)), create_graph=keep_graph)
        return grads[0] if isinstance(x, Tensor) else dict(zip(x, grads, strict=True))


def require_finite(data: Tensor, name: str) -> None:
    """Raise if a data tensor is not made of finite floating-point numbers."""
    if not data.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, got {data.dtype}")
    if not bool(data.isfinite().all()):
        raise ValueError(f"{name} has NaN or infinite entries")


def require_same_kind(first: Tensor, second: Tensor, names: str) -> None:
    """Raise if two data tensors differ in dtype or device."""
    if first.dtype != second.dtype or first.device != second.device:
        raise TypeError(
            f"{names} must share dtype and device, got {first.dtype} on {first.device} "
            f"and {second.dtype} on {second.device}"
        )
