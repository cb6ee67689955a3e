"""The interface of every problem, and any function as a problem."""

import copy
import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from mirrordescent._internal import html
from mirrordescent._internal.arrays import as_tensor
from mirrordescent._internal.checks import require_data
from mirrordescent._internal.rounding import rounded_down, unit
from mirrordescent.domains import Domain, WholeSpace
from mirrordescent.parts import Part
from mirrordescent.problems.linearisation import least_model_value
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.trees import Point, Tree, batch_size, leaves, norm, tree_map


class Problem(Part, nn.Module):
    """A batch of problems min f(x) over x in a domain.

    **Required:** ``value`` and ``grad``. Pass the batch size, the shape of a point and the data
    to ``__init__``.

    **Optional:** every other attribute and method. State what is known about f, and more oracles,
    methods, certificates and theorems become applicable:

    - facts: ``convex``, ``never_below``, ``domain``, ``smoothness``, ``strong_convexity``,
      ``bounded_gradients``;
    - finite sums: ``terms`` and ``grad_of_terms``, for stochastic gradients;
    - kinks: ``kink`` and ``smoothed_grad``, for smoothed gradients;
    - structure: ``proximal`` and ``saddle_point``, for proximal and primal-dual methods;
    - bounds: ``minimiser``, ``bound_at``, ``value_error``, ``gradient_error`` and
      ``bound_from_means``, for certificates;
    - ``features``, for methods whose step sizes depend on the problem;
    - ``start``, for a better first point.

    Args:
        batch: Number of problems; None if all points share the same data, so that any batch of
            points is valid.
        sample_shape: Shape of one point; None if it is unknown, or if points are dicts.
        data: Tensors, which become buffers of these names.
    """

    kind = "problem"

    def __init__(
        self, batch: int | None, sample_shape: tuple[int, ...] | None, **data: Tensor
    ) -> None:
        super().__init__()
        if batch == 0:
            raise ValueError(
                f"{type(self).__name__} needs at least one problem, got an empty batch"
            )
        data = {name: as_tensor(tensor, name) for name, tensor in data.items()}
        require_data(**data)
        self.batch = batch
        self.sample_shape = sample_shape
        for name, tensor in data.items():
            self.register_buffer(name, tensor)

    # Required: the function and its gradient.

    def value(self, x: Point) -> Tensor:
        """f(x) per sample: (batch,)."""
        raise NotImplementedError

    def grad(self, x: Point) -> Tree:
        """∇f(x), or one subgradient, in the shape of x."""
        raise NotImplementedError

    # Facts.

    convex: bool | None = None
    """Whether f is convex by construction; None if unknown."""

    never_below: float | None = None
    """A lower bound on all values of f, such as 0 for a sum of squares; None if unknown."""

    domain: Domain = WholeSpace()
    """The set over which f is minimised.

    A start outside raises an error. An iterate outside ends the solve of its sample.
    """

    def smoothness(self) -> float | None:
        """A Lipschitz constant of ∇f in ℓ₂ for the whole batch.

        Infinite if f has kinks, None if unknown.
        """
        has_kinks = type(self).smoothed_grad is not Problem.smoothed_grad
        return math.inf if has_kinks else None

    def strong_convexity(self) -> float | None:
        """A constant μ ≥ 0 such that f − (μ/2)‖x‖² is convex, for the whole batch.

        None if unknown.
        """
        return None

    @property
    def bounded_gradients(self) -> bool:
        """Whether ‖∇f‖ is known to be bounded on the domain."""
        return self.domain.bounded

    # Finite sums.

    @property
    def terms(self) -> int | None:
        """The number of summands of f that can be sampled; None if f is not a finite sum."""
        return None

    def grad_of_terms(self, x: Point, subset: Tensor) -> Tree:
        """Return an estimate of ∇f(x) from some summands, unbiased for a random subset.

        Args:
            x: Points.
            subset: Indices of the summands.
        """
        raise TypeError(f"{type(self).__name__} is not a finite sum")

    # Kinks.

    @property
    def kink(self) -> float | Tensor | None:
        """The weight h of kinks h|d|, a number or (batch,).

        None if a sample has kinks of several weights, or if h is unknown.
        """
        return None

    def smoothed_grad(self, x: Point, width: float | Tensor) -> Tree:
        """Return the gradient of f with its kinks smoothed over a width."""
        raise TypeError(f"{type(self).__name__} has no smoothed gradient")

    # Structure.

    def proximal(self) -> tuple["Problem", Callable[[Tree, Tensor], Tree]] | None:
        """Split f into a smooth problem and a rest with a prox; None if there is no such split.

        The prox takes points and one step size per sample. The rest includes the indicator of the
        domain. If f itself is smooth, return None.
        """
        return None

    def saddle_point(self) -> SaddlePoint | None:
        """Return the form F(x) + G(Kx) of this problem; None if it has none.

        A problem that is also a :class:`SaddlePoint` returns itself.
        """
        return cast(SaddlePoint, self) if SaddlePoint in type(self).__mro__ else None

    # Minimisers and lower bounds.

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Statements about the data that lower bounds rest on and that are not proven, in words.

        Bounds of such a problem are conditional on them.
        """
        return ()

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """Return minimisers (batch, …) and lower bounds (batch,); None if there is no solver.

        Args:
            tolerance: Gap to reach, relative to that of the start.
        """
        return None

    def bound_at(self, x: Point, convexity: float | None = None) -> Tensor | None:
        """Return a lower bound on min f from one point, rounded down; None if there is none.

        For a convex f, a set X and μ ≥ 0,

        .. code-block:: none

            min f ≥ min_{x' ∈ X} f(x) + ⟨g, x' − x⟩ + (μ/2)‖x' − x‖²,   g = ∇f(x)

        For μ > 0 the minimum is at P_X(x − g/μ). For μ = 0 and a bounded X it is at a vertex, as in
        the Frank–Wolfe method. The bound is computed in double precision, if the problem supports
        it. Rounding errors of f (:meth:`value_error`), ∇f (:meth:`gradient_error`) and the minimum
        are subtracted.

        Args:
            x: Points.
            convexity: Strong convexity μ, if it has been computed already.
        """
        mu = convexity
        if mu is None:
            mu = self.strong_convexity() or 0.0
        if not self.convex or not (mu > 0 or self.domain.bounded):
            return None
        return self._bound_by_linearisation(x, mu)

    def _bound_by_linearisation(self, x: Tree, convexity: float | Tensor) -> Tensor:
        """Return the bound of :meth:`bound_at` for a μ ≥ 0, a number or (batch,)."""
        dtype = next(leaves(x)).dtype
        problem = self
        if dtype != torch.float64:
            problem, x = in_double(self, x)
        value = problem.value(x)
        g = problem.grad(x)
        value_error = problem.value_error(x, value)
        gradient_error = problem.gradient_error(x, g)
        decrease = least_model_value(problem.domain, x, g, gradient_error, convexity)
        rounding = unit(0, value.dtype) * (value.abs() + decrease.abs()).nan_to_num(posinf=0.0)
        return rounded_down(value + decrease - value_error - rounding, dtype)

    def value_error(self, x: Point, value: Tensor) -> Tensor:
        """Bound the rounding error of ``value`` at a point: (batch,).

        Override this if the sums in f are known. By default f is treated as a sum of smooth terms
        of (Ax − b), with as many terms as the data and x have entries along all dimensions. The
        rounding of x and of the data then changes f by a few units of
        |f| + ‖∇f‖‖x‖ + √(2L|f|)‖x‖.

        Args:
            x: Points.
            value: f(x) as computed, (batch,).
        """
        units = self._units(x, value)
        smoothness = self._finite_smoothness()
        size = norm(x)
        curved = (2 * smoothness * value.abs()).sqrt() * size + units * smoothness * size.square()
        return units * (value.abs() + norm(self.grad(x)) * size + curved)

    def infeasibility(self, x: Point) -> Tensor | None:
        """Return the penalty for violated constraints that is part of f(x): (batch,).

        None means that f has no such penalty. Otherwise lower bounds are on the minimum over
        feasible points, and f may be lower than that at infeasible points.

        Args:
            x: Points.
        """
        return None

    def certainly_feasible(self, x: Point) -> Tensor | None:
        """Tell for which samples all penalised constraints hold, whatever was rounded: (batch,).

        None means that f has no penalty for violated constraints.

        Args:
            x: Points.
        """
        return None

    def gradient_error(self, x: Point, gradient: Point) -> Tensor:
        """Bound the rounding error of ``grad`` at a point in ℓ₂: (batch,).

        Override this if the sums in ∇f are known. By default it is a few units of ‖∇f‖ + L‖x‖, as
        for :meth:`value_error`.

        Args:
            x: Points.
            gradient: ∇f(x) as computed.
        """
        steepness = norm(gradient)
        return self._units(x, steepness) * (steepness + self._finite_smoothness() * norm(x))

    def _units(self, x: Tree, like: Tensor) -> float:
        """Return the relative rounding error of a sum over the data and x."""
        tensors = [*self.buffers(), *leaves(x)]
        return unit(sum(sum(tensor.shape) for tensor in tensors), like.dtype)

    def _finite_smoothness(self) -> float:
        """Return L, or μ if f has kinks or L is unknown."""
        smoothness = self.smoothness()
        if smoothness is None or math.isinf(smoothness):
            return self.strong_convexity() or 0.0
        return smoothness

    def bound_from_means(self, gradient: Point, x: Point, count: int = 1) -> Tensor | None:
        """Return a lower bound on min f from means of gradients and points; None if there is none.

        Args:
            gradient: Mean of the gradients, with weights wᵢ ∝ i².
            x: Mean of the points at which they were computed, with the same weights.
            count: Number of gradients.
        """
        return None

    # Descriptions for methods and kernels.

    def features(self, x0: Point | None = None) -> dict[str, Tensor]:
        """Describe every sample by a few dimensionless numbers, (batch,) each.

        Conditioned methods choose their step sizes by them. Logarithms of ratios that are 0 for a
        typical problem are a good choice. Leave out quantities that an exact symmetry of the
        problem changes, or give them as separate features with a fixed exponent.

        Args:
            x0: Starting point, on which features may depend.
        """
        return {}

    # Points.

    def start(self, batch: int | None = None) -> Tree:
        """Return a first point inside the domain: 0, or the centre of a simplex or box."""
        if self.sample_shape is None:
            raise ValueError(
                f"{type(self).__name__} does not know the shape of its points: give x0"
            )
        like = next(self.buffers(), torch.empty(0))
        return self.domain.inner_point(like.new_empty(self.batch or batch or 1, *self.sample_shape))

    def check(self, x: Tree, name: str = "x0") -> None:
        """Raise an error unless x is a finite batch of points of this problem.

        Args:
            x: Points.
            name: Name of the argument in the error message.
        """
        owner = type(self).__name__
        shape = self.sample_shape
        if not isinstance(x, (Tensor, dict)):
            raise TypeError(f"{name} must be a tensor or a dict of tensors, got {type(x).__name__}")
        if isinstance(x, dict) and not x:
            raise ValueError(f"{name} must have at least one tensor, got an empty dict")
        if isinstance(x, dict) and shape is not None:
            raise TypeError(f"{name} must be a tensor for {owner}, got a dict")
        for leaf in leaves(x):
            self._check_leaf(leaf, name)
        if len(sizes := {leaf.shape[0] for leaf in leaves(x)}) > 1:
            raise ValueError(
                f"all tensors of {name} must have the same batch size, got {sorted(sizes)}"
            )
        if shape is not None and isinstance(x, Tensor):
            expected = (self.batch or len(x), *shape)
            if x.shape != expected:
                raise ValueError(
                    f"{name} must have shape (batch, …) = {expected} for {owner}, "
                    f"got {tuple(x.shape)}"
                )
        if not isinstance(self.domain, WholeSpace):
            self.domain.require(x, name, owner, closed=True)

    def _check_leaf(self, leaf: Tensor, name: str) -> None:
        """Raise an error unless a tensor is a finite batch of the type and device of the data."""
        owner = type(self).__name__
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            raise TypeError(f"{name} must consist of floating-point tensors")
        if leaf.ndim == 0 or leaf.shape[0] == 0:
            raise ValueError(
                f"{name} needs a non-empty leading batch dimension, got shape {tuple(leaf.shape)}"
            )
        if not bool(leaf.isfinite().all()):
            raise ValueError(f"{name} has NaN or infinite entries")
        data = next((b for b in self.buffers() if b.is_floating_point()), None)
        if data is not None and leaf.dtype != data.dtype:
            raise TypeError(f"{name} is {leaf.dtype}, but the data of {owner} are {data.dtype}")
        if data is not None and leaf.device != data.device:
            raise TypeError(f"{name} is on {leaf.device}, but {owner} is on {data.device}")

    def extra_repr(self) -> str:
        """Show the batch size, the shape of a point and the constructor arguments."""
        text = f"batch={self.batch}, shape={self.sample_shape}, {super().extra_repr()}"
        return text.removesuffix(", ")

    def _repr_html_(self) -> str:
        """Return the facts of the problem, and its data if they are images, for notebooks."""
        known = {True: "yes", False: "no", None: "unknown"}
        rows = [
            ("problem", type(self).__name__),
            ("problems in the batch", "any number" if self.batch is None else str(self.batch)),
            (
                "shape of a point",
                "unknown" if self.sample_shape is None else str(self.sample_shape),
            ),
            ("convex", known[self.convex]),
            ("minimised over", repr(self.domain)),
        ]
        shown = html.pictures(getattr(self, "y", None))
        return f"<div>{html.table(rows)}{''.join(shown)}</div>"


class Function(Problem):
    """Any function as a problem, with its gradient by automatic differentiation.

    Args:
        function: Function that maps a batch of points to one number per sample,
            (batch, …) → (batch,).
        domain: Set over which the function is minimised; all of Rⁿ by default.

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
                f"the function must return shape ({n},) for {n} points, got {tuple(value.shape)}"
            )
        return value

    def grad(self, x: Tree) -> Tree:
        """Differentiate the function.

        If x requires a gradient, the result can be differentiated again.
        """
        keep_graph = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves(x))
        with torch.inference_mode(False), torch.enable_grad():
            points = x if keep_graph else tree_map(_new_leaf, x)
            grads = torch.autograd.grad(
                self.value(points).sum(), list(leaves(points)), create_graph=keep_graph
            )
        return grads[0] if isinstance(x, Tensor) else dict(zip(x, grads, strict=True))


def _new_leaf(tensor: Tensor) -> Tensor:
    """Return the same numbers as a leaf of a new graph."""
    # Inference tensors cannot be part of a graph.
    detached = tensor.clone() if tensor.is_inference() else tensor.detach()
    return detached.requires_grad_()


def in_double(problem: Problem, x: Tree) -> tuple[Problem, Tree]:
    """Return a problem and points in double precision.

    If a function or operator holds single-precision data outside of buffers, the problem cannot be
    converted. Then both are returned unchanged, as they are if they are in double precision.
    """
    floating = [leaf for leaf in (*problem.buffers(), *leaves(x)) if leaf.is_floating_point()]
    if all(leaf.dtype == torch.float64 for leaf in floating) and not list(problem.parameters()):
        return problem, x
    precise = copy.deepcopy(problem).double()
    points = tree_map(Tensor.double, x)
    try:
        precise.grad(points)
    except RuntimeError:  # PyTorch refuses to mix float and double
        return problem, x
    return precise, points
