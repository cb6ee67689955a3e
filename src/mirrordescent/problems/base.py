"""The interface of every problem, and any function as a problem."""

import copy
import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from mirrordescent._internal.checks import require_data
from mirrordescent.domains import Domain, WholeSpace
from mirrordescent.parts import Part
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.trees import Point, Tree, batch_size, dot, leaves, norm, tree_map


class Pixels(NamedTuple):
    """The data of f(x) = s·(‖Z(x − y)‖² + λ‖Dx‖₁), for kernels: ``fidelity`` is its curvature 2s,
    ``kink`` is sλ.

    ``low`` and ``high`` are the ends of a box that contains the minimisers, one pair for every
    channel of an image. ``isotropic`` and ``coupled`` say which differences are grouped, ``huber``
    up to where their norm is rounded.
    """

    y: Tensor
    mask: Tensor | None
    low: Tensor
    high: Tensor
    fidelity: float
    kink: float | Tensor
    isotropic: bool = False
    coupled: bool = False
    huber: float = 0.0

    @property
    def bound(self) -> float | Tensor:
        """``kink`` as tables of steps and samples have it: a number, or (1, batch)."""
        return self.kink[None] if isinstance(self.kink, Tensor) else self.kink

    def rounded(self, curvature: Tensor) -> Tensor:
        """Return the curvature, (steps, 1), of kinks that are rounded up to it, and already up to
        ``huber``.
        """
        most = torch.as_tensor(
            self.bound / self.huber if self.huber else torch.inf, dtype=curvature.dtype
        )
        return torch.minimum(curvature, most)

    def shrink(self, sigma: float | Tensor) -> float | Tensor:
        """The factor of the prox of G* that is due to ``huber``, 1/(1 + σ·huber/kink), for a number
        or (1, batch).
        """
        return 1 / (1 + sigma * self.huber / self.bound)


class Problem(Part, nn.Module):
    """A batch of problems min f(x), with the values and gradients of all of them at once.

    To add a problem, write ``value`` and ``grad``, and pass the shapes and the data to
    ``__init__``; the optional methods below make more oracles, methods, certificates and theorems
    applicable.

    Args:
        batch: the number of problems; None if all share their data, so that any batch of points
            will do.
        sample_shape: the shape of one point; None if it is not known, or if points are dicts.
        data: tensors, which become buffers of these names, so that ``problem.double()`` and
            ``problem.to(device)`` do what they say.
    """

    kind = "problem"

    convex: bool | None = None
    """Whether f is convex by construction; None: not known."""

    never_below: float | None = None
    """A number that f cannot be below, such as 0 for a sum of squares; None: not known."""

    domain: Domain = WholeSpace()
    """Where the minimum is sought. A start outside is refused, and an iterate outside ends the
    solve of its sample.
    """

    def __init__(
        self, batch: int | None, sample_shape: tuple[int, ...] | None, **data: Tensor
    ) -> None:
        super().__init__()
        if batch == 0:
            raise ValueError(
                f"{type(self).__name__} needs at least one problem, got an empty batch"
            )
        require_data(**data)
        self.batch = batch
        self.sample_shape = sample_shape
        for name, tensor in data.items():
            self.register_buffer(name, tensor)

    def value(self, x: Point) -> Tensor:
        """f(x) per sample: (batch,)."""
        raise NotImplementedError

    def grad(self, x: Point) -> Tree:
        """∇f(x), or one subgradient, in the shape of x."""
        raise NotImplementedError

    @property
    def terms(self) -> int | None:
        """How many summands f has that can be sampled; None if it is not such a sum."""
        return None

    def grad_of_terms(self, x: Point, subset: Tensor) -> Tree:
        """Return the estimate of ∇f(x) from the terms with these indices, unbiased for a random
        subset.
        """
        raise TypeError(f"{type(self).__name__} is not a finite sum")

    def smoothed_grad(self, x: Point, width: float | Tensor) -> Tree:
        """Return the gradient of f with its kinks rounded over a width."""
        raise TypeError(f"{type(self).__name__} has no smoothed gradient")

    @property
    def kink(self) -> float | Tensor | None:
        """The h of kinks h|d|, if it is the same for all of a sample, as a number or (batch,);
        None: not known.
        """
        return None

    def smoothness(self) -> float | None:
        """L_f, a Lipschitz constant of ∇f in ℓ₂ for the whole batch: infinite if there are kinks;
        None: not known.
        """
        # A problem that can smooth its kinks has some.
        return None if type(self).smoothed_grad is Problem.smoothed_grad else math.inf

    def strong_convexity(self) -> float | None:
        """μ ≥ 0 such that f − (μ/2)‖x‖² is convex, for the whole batch; None: not known."""
        return None

    @property
    def bounded_gradients(self) -> bool:
        """Whether ‖∇f‖ is known to be bounded on the whole domain."""
        return self.domain.bounded

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """Return minimisers and lower bounds, (batch, …) and (batch,), if the problem can find them
        by itself.
        """
        return None

    def saddle_point(self) -> SaddlePoint | None:
        """Return the form F(x) + G(Kx), if the problem has one: itself, if its class is also a
        SaddlePoint.
        """
        return cast(SaddlePoint, self) if SaddlePoint in type(self).__mro__ else None

    def proximal(self) -> tuple["Problem", Callable[[Tree, Tensor], Tree]] | None:
        """Return what is smooth of f, and the prox of the rest with one step length per sample;
        None if there is none.

        The rest may have kinks, and includes the set. Without any, f itself is smooth, or has no
        simple prox.
        """
        return None

    def bound_from_means(self, gradient: Point, x: Point, told: int = 1) -> Tensor | None:
        """Return a lower bound on min f from means, wᵢ ∝ i², of so many gradients and of their
        points, if any.
        """
        return None

    def bound_at(self, x: Point, convexity: float | None = None) -> Tensor | None:
        """Return a lower bound on min f over the domain X from one point, for a convex f; None if
        there is none.

        .. code-block:: none

            f(x') ≥ f(x) + ⟨g, x' − x⟩ + (μ/2)‖x' − x‖²,  g = ∇f(x)

        where the right side is least over X at P_X(x − g/μ), or for μ = 0 at a vertex of a bounded
        X: f is linearised there, as in the method of Frank and Wolfe. It is rounded down.
        ``convexity`` is μ, if it is known already.
        """
        mu = self.strong_convexity() or 0.0 if convexity is None else convexity
        if not self.convex or not (mu > 0 or self.domain.bounded):
            return None
        value = self.value(x)
        g = self.grad(x)
        bounds = []
        if mu > 0:
            away = tree_map(
                torch.sub, self.domain.project(tree_map(lambda a, b: a - b / mu, x, g)), x
            )
            bounds.append(dot(g, away) + mu / 2 * dot(away, away))
        if self.domain.bounded:
            bounds.append(self.domain.least(g) - dot(g, x))
        fall = torch.stack(bounds).amax(0)
        rounding = 8 * torch.finfo(value.dtype).eps * (value.abs() + norm(g) * norm(x) + fall.abs())
        return value + fall - rounding

    def features(self, x0: Point | None = None) -> dict[str, Tensor]:
        """Describe every sample, and a start, by a few numbers without units, (batch,) each, for
        conditioned methods.

        Logarithms of ratios are a good choice, 0 where most problems are. What the problem's exact
        symmetries change is best left out, or given as a feature of its own to which schedules
        respond with a fixed exponent.
        """
        return {}

    def pixels(self) -> Pixels | None:
        """Return the data that kernels for total variation work on, if they are made for this
        problem.
        """
        return None

    def start(self, batch: int | None = None) -> Tree:
        """Return a sensible first point inside the domain: 0, or the centre of a simplex or box."""
        if self.sample_shape is None:
            raise ValueError(
                f"{type(self).__name__} does not know the shape of its points: give x0"
            )
        like = next(self.buffers(), torch.empty(0))
        return self.domain.inner_point(like.new_empty(self.batch or batch or 1, *self.sample_shape))

    def check(self, x: Tree, name: str = "x0") -> None:
        """Raise unless x is a finite batch of points of this problem."""
        owner = type(self).__name__
        shape = self.sample_shape
        if not isinstance(x, (Tensor, dict)):
            raise TypeError(f"{name} must be a tensor or a dict of tensors, got {type(x).__name__}")
        if isinstance(x, dict) and not x:
            raise ValueError(f"{name} is an empty dict")
        if isinstance(x, dict) and shape is not None:
            raise TypeError(f"{name} must be a tensor for {owner}, got a dict")
        data = next((b for b in self.buffers() if b.is_floating_point()), None)
        for leaf in leaves(x):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                raise TypeError(f"{name} must be made of floating-point tensors")
            if leaf.ndim == 0 or leaf.shape[0] == 0:
                raise ValueError(
                    f"{name} has shape {tuple(leaf.shape)}: it needs a non-empty leading batch dimension"
                )
            if not bool(leaf.isfinite().all()):
                raise ValueError(f"{name} has NaN or infinite entries")
            if data is not None and leaf.dtype != data.dtype:
                raise TypeError(f"{name} is {leaf.dtype}, but the data of {owner} are {data.dtype}")
            if data is not None and leaf.device != data.device:
                raise TypeError(f"{name} is on {leaf.device}, but {owner} is on {data.device}")
        if len(sizes := {leaf.shape[0] for leaf in leaves(x)}) > 1:
            raise ValueError(f"the leaves of {name} disagree on the batch size: {sorted(sizes)}")
        if (
            shape is not None
            and isinstance(x, Tensor)
            and x.shape != (wanted := (self.batch or len(x), *shape))
        ):
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, but {owner} needs (batch, …) = {wanted}"
            )
        if not isinstance(self.domain, WholeSpace):
            self.domain.require(x, name, owner, closed=True)

    def extra_repr(self) -> str:
        """Show how many problems there are, the shape of a point, and the numbers they were made
        with.
        """
        return (
            f"batch={self.batch}, shape={self.sample_shape}, {super().extra_repr()}".removesuffix(
                ", "
            )
        )


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
        value = self.function(x)
        n = batch_size(x)
        if value.shape != (n,):
            raise ValueError(
                f"the function returned shape {tuple(value.shape)} for {n} points: it must be ({n},)"
            )
        return value

    def grad(self, x: Tree) -> Tree:
        """Differentiate the function; inside an autograd graph the result can be differentiated
        again.
        """
        keep_graph = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves(x))
        with torch.enable_grad():
            points = x if keep_graph else tree_map(lambda leaf: leaf.detach().requires_grad_(), x)
            grads = torch.autograd.grad(
                self.value(points).sum(), list(leaves(points)), create_graph=keep_graph
            )
        return grads[0] if isinstance(x, Tensor) else dict(zip(x, grads, strict=True))


def in_double(problem: Problem, x: Tree) -> tuple[Problem, Tree]:
    """Return a problem and points in double precision.

    A function or an operator whose data are out of sight, in single precision, stays as it is, and
    so do its points.
    """
    precise = copy.deepcopy(problem).double()
    points = tree_map(Tensor.double, x)
    try:
        precise.grad(points)
    except RuntimeError:  # as torch says that double and float do not go together
        return problem, x
    return precise, points
