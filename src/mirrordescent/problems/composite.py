"""Composite problems: a smooth function plus terms such as norms and total variation, on a set."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from mirrordescent._internal.rounding import unit
from mirrordescent.domains import Box, Domain, PositiveOrthant, WholeSpace
from mirrordescent.parts import Config, replace_children
from mirrordescent.problems.base import Problem
from mirrordescent.problems.duality import Dual, add_adjoints, dual_bound, proving_points
from mirrordescent.problems.fits import Fit, SquaredError
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.problems.terms import L1, Blocks, Term
from mirrordescent.trees import Tree, norm, tree_map

DATA = "data"
"""Name of the block of the data in a dual point."""


class Composite(Problem, SaddlePoint):
    """f(x) = f₀(x) + Σⱼ hⱼgⱼ(Kⱼx) on a set X, with a smooth f₀ and terms that may have kinks.

    Every operation of a problem is derived from the parts: value and subgradient, smoothed
    gradients, proximal operators, the saddle-point form and lower bounds. Classical solvers and
    certificates therefore work without further code. Every problem of a batch may have its own
    data, weights and operators.

    **Saddle-point form** F(x) + G(Kx). The terms are blocks of G. If f₀ has a prox, or is not a
    :class:`Fit`, it is F; otherwise its data term d(ZAx) is one more block of G. All blocks of K
    are scaled to the same norm.

    **Lower bounds** on min f come from dual points. If f₀ is a :class:`Fit`, a dual point is made
    feasible by a term that can solve Kᵀu = w (an L1 with an orthonormal operator, TV, Roughness or
    Ridge), or on x ≥ 0 by raising the dual point of the data. If f₀ is strongly convex or X is
    bounded, f₀ is linearised.

    Args:
        smooth: Smooth part f₀, such as :class:`~mirrordescent.problems.SquaredError`,
            :class:`~mirrordescent.problems.Counts`,
            :class:`~mirrordescent.problems.LogisticRegression`, or any problem that knows its
            ``smoothness``.
        terms: Terms, such as L1, TV, Roughness, Ridge or subclasses of :class:`Term`, and at most
            one set, such as NonNegative(), Box(0, 1) or Simplex().

    >>> import torch
    >>> problem = Composite(SquaredError(torch.tensor([[3.0, 0.5]])), [L1(1.0), PositiveOrthant()])
    >>> problem.value(torch.tensor([[2.0, 0.0]]))
    tensor([2.6250])
    """

    sample_shape: tuple[int, ...]

    def __init__(self, smooth: Problem, terms: Sequence[Term | Domain] = ()) -> None:
        sets = [each for each in terms if isinstance(each, Domain)]
        added = [each for each in terms if isinstance(each, Term)]
        if wrong := [each for each in terms if not isinstance(each, Domain | Term)]:
            raise TypeError(
                f"terms must be instances of Term or Domain, got {type(wrong[0]).__name__}"
            )
        if len(sets) > 1:
            raise ValueError(
                f"terms may contain one set, got {len(sets)}: "
                "give their intersection, such as Box(0, 1)"
            )
        if smooth.sample_shape is None:
            raise ValueError(
                f"terms need the shape of points, which {type(smooth).__name__} does not know: "
                "set its sample_shape"
            )
        super().__init__(_common_batch(smooth, added), smooth.sample_shape)
        if smooth.smoothness() in (None, math.inf):
            raise ValueError(
                f"smooth must know a finite smoothness(), which {type(smooth).__name__} does not: "
                "pass functions with kinks as terms"
            )
        self.smooth = smooth
        self.parts = nn.ModuleList(added)
        self.domain = sets[0] if sets else smooth.domain
        like = next(smooth.buffers()).new_zeros(self.batch or 1, *self.sample_shape)
        for term in self._terms:
            term.prepare(like)
        self.dual_data = isinstance(smooth, Fit) and not self._has_prox()
        """Whether the data are a block of G."""
        self.proximable = isinstance(smooth, Fit)

    def _has_prox(self) -> bool:
        """Whether f₀ plus the indicator of X has a prox."""
        if not isinstance(self.smooth, SquaredError) or not self.smooth.proximable:
            return False
        if isinstance(self.domain, WholeSpace):
            return True
        return isinstance(self.domain, PositiveOrthant | Box) and self.smooth.separable

    def config(self) -> Config:
        return {"smooth": self.smooth, "terms": [*self.parts, self.domain]}

    @property
    def _terms(self) -> list[Term]:
        return list(cast("Sequence[Term]", self.parts))

    @property
    def convex(self) -> bool | None:  # type: ignore[override]
        """Whether f₀ is convex, and convex enough for all weakly convex terms; None if unknown."""
        if not self._weakly_convex:
            return self.smooth.convex
        return True if self.smooth.convex and self._modulus() >= 0 else None

    @property
    def _weakly_convex(self) -> bool:
        """Whether some term is only weakly convex."""
        return any(term.weakly_convex for term in self._terms)

    def _modulus(self) -> float:
        """Return the sum of the moduli of convexity of all parts, which may be negative."""
        modulus = (self.smooth.strong_convexity() or 0.0) + sum(t.convexity for t in self._terms)
        return modulus - unit(len(self.parts)) * abs(modulus)

    @property
    def never_below(self) -> float | None:  # type: ignore[override]
        """The bound of f₀, if no term can be negative."""
        nonnegative = all(term.nonnegative for term in self._terms)
        return self.smooth.never_below if nonnegative else None

    def value(self, x: Tensor) -> Tensor:
        value = self.smooth.value(x)
        for term in self._terms:
            value = value + term.value(x)
        return value

    def grad(self, x: Tensor) -> Tensor:
        return self.smoothed_grad(x, 0.0)

    def smoothed_grad(self, x: Tensor, width: float | Tensor) -> Tensor:
        """Return the gradient with |d| replaced by a Huber function of this width in all terms."""
        out = cast(Tensor, self.smooth.grad(x))
        if self.parts and not isinstance(self.smooth, Fit):
            out = out.clone()  # a problem may return its own memory
        for term in self._terms:
            out = term.add_gradient(out, x, width)
        return out

    @property
    def kink(self) -> float | Tensor | None:
        """h of the term with kinks; None if there is none, or more than one."""
        kinked = [term for term in self._terms if term.kinked]
        return kinked[0].scaled_weight if len(kinked) == 1 else None

    def smoothness(self) -> float:
        return cast(float, self.smooth.smoothness()) + sum(term.curvature for term in self._terms)

    def strong_convexity(self) -> float:
        """The sum of the moduli of convexity of all parts, if it is positive; else 0."""
        if self._weakly_convex:
            return max(self._modulus(), 0.0)
        return (self.smooth.strong_convexity() or 0.0) + sum(term.convexity for term in self._terms)

    @property
    def linearised(self) -> bool:
        """Whether bounds are proven by gradients of f, because a term has no dual point."""
        return any(term.linearised for term in self._terms)

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """Return the minimisers of f₀, if there are no terms and no set."""
        alone = not self.parts and isinstance(self.domain, WholeSpace)
        return self.smooth.minimiser(tolerance) if alone else None

    def start(self, batch: int | None = None) -> Tensor:
        """Return the start of f₀, projected onto X."""
        start = cast(Tensor, self.smooth.start(self.batch or batch))
        if isinstance(self.domain, WholeSpace):
            return start
        return cast(Tensor, self.domain.project(start))

    def features(self, x0: Tensor | None = None) -> dict[str, Tensor]:
        """Return the features of f₀, and log(hⱼ‖Kⱼ‖√n / ‖∇f₀(0)‖) of every term.

        These ratios do not depend on the units of x and f.
        """
        features = dict(self.smooth.features(x0))
        origin = cast(Tensor, self.smooth.start(self.batch)) * 0
        pull = norm(self.smooth.grad(origin)).double()
        scale = math.sqrt(math.prod(self.sample_shape)) / pull.clamp(min=1e-30)
        for index, term in enumerate(self._terms):
            weight = torch.as_tensor(term.scaled_weight, dtype=torch.float64, device=pull.device)
            ratio = (weight * term.norm * scale).clamp(1e-12, 1e12)
            features[f"term {index + 1}"] = ratio.log()
        return features

    def proximal(self) -> tuple[Problem, Callable[[Tree, Tensor], Tree]] | None:
        """Return the smooth part of f, and the prox of the rest; None if that has no simple prox.

        The prox is simple if the only term with kinks is an L1 with KᵀK = I, and X is all of Rⁿ. If
        K = I, X may also be a product of intervals.
        """
        kinked = [term for term in self._terms if math.isinf(term.curvature)]
        if len(kinked) != 1:  # methods handle sets without a prox
            return None
        (term,) = kinked
        if not isinstance(term, L1) or not term.invertible:
            return None
        intervals = term.operator is None and isinstance(self.domain, PositiveOrthant | Box)
        if not isinstance(self.domain, WholeSpace) and not intervals:
            return None

        def prox(x: Tree, t: Tensor) -> Tree:
            return self.domain.project(term.prox(cast(Tensor, x), t))

        return self._without(term), prox

    def _without(self, excluded: Term) -> Problem:
        """Return this problem without one term; all other parts are shared."""
        terms = nn.ModuleList(term for term in self._terms if term is not excluded)
        return replace_children(self, {"parts": terms})

    # The saddle-point form F(x) + G(Kx).

    def saddle_point(self) -> SaddlePoint | None:
        """Return this problem; None if G would have no blocks, or not be convex."""
        if self._weakly_convex:
            return None
        return self if self.dual_data or self.parts else None

    def explicit(self) -> SaddlePoint:
        """Return the form with f₀ in F, for methods that use the gradient of F."""
        if not self.dual_data or not self.parts:
            return self
        form = copy.copy(self)
        form.dual_data = False
        return form

    @property
    def ratio(self) -> float | None:
        """None, because the best ratio depends on the scales of x and f."""
        return None

    @property
    def block_norms(self) -> list[float]:
        """‖Kⱼ‖ of the blocks; the data come last."""
        norms = [term.norm for term in self._terms]
        if self.dual_data:
            norms.append(cast(Fit, self.smooth).operator_norm)
        return norms

    @property
    def block_scales(self) -> list[float]:
        """Factors κⱼ such that all κⱼKⱼ have the same norm, so that one step size suits all."""
        norms = self.block_norms
        return [max(norms) / each for each in norms]

    @property
    def K_norm(self) -> float:
        """√(Σ ‖κⱼKⱼ‖²) ≥ ‖K‖."""
        norms = self.block_norms
        return math.hypot(*(a * b for a, b in zip(self.block_scales, norms, strict=True))) or 1.0

    def K(self, x: Tensor) -> Blocks:
        """Return the blocks κⱼKⱼx, and κZAx if the data are in G."""
        blocks = {}
        scales = self.block_scales
        for index, (term, scale) in enumerate(zip(self._terms, scales, strict=False)):
            for name, block in term.K(x).items():
                blocks[_block_name(index, name)] = block if scale == 1 else scale * block
        if self.dual_data:
            blocks[DATA] = scales[-1] * cast(Fit, self.smooth).observe(x)
        return blocks

    def K_adjoint(self, u: Blocks) -> Tensor:
        """ΣⱼκⱼKⱼᵀuⱼ, plus κAᵀZv if the data are in G."""
        first = next(iter(u.values()))
        dual = self._unscaled(u)
        out = first.new_zeros(len(first), *self.sample_shape)
        return add_adjoints(out, self.smooth, self._terms, dual)

    @property
    def F_convexity(self) -> float:
        """Strong convexity of f₀ if it is F and has an argmin, else 0."""
        if not self.proximable or self.dual_data:
            return 0.0
        return self.smooth.strong_convexity() or 0.0

    @property
    def F_smoothness(self) -> float:
        """Smoothness of f₀; 0 if its data are in G."""
        return 0.0 if self.dual_data else cast(float, self.smooth.smoothness())

    @property
    def F_quadratic(self) -> bool:
        """Whether f₀ is exactly a :class:`SquaredError`, or its data are in G, so that F = 0."""
        return self.dual_data or type(self.smooth) is SquaredError

    def grad_F(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x) if self.dual_data else cast(Tensor, self.smooth.grad(x))

    def project(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.domain.project(x))

    def prox_F(self, x: Tensor, tau: float | Tensor) -> Tensor:
        if self.dual_data:
            return self.project(x)
        if not self.proximable:
            raise TypeError(
                f"this method needs a prox of F, which a Composite of {type(self.smooth).__name__} "
                "does not have: use CondatVu"
            )
        return self.project(cast(SquaredError, self.smooth).prox(x, tau))

    def argmin_F(self, w: Tensor) -> Tensor:
        return self.project(cast(SquaredError, self.smooth).argmin(w))

    def prox_G_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """prox_{σκ²g*}(κu)/κ of every block."""
        scales = self.block_scales
        proxed: Blocks = {}
        for index, (term, scale) in enumerate(zip(self._terms, scales, strict=False)):
            blocks = term.prox_conjugate(self._blocks_of(index, u, scale), sigma * scale**2)
            for name, block in blocks.items():
                proxed[_block_name(index, name)] = block if scale == 1 else block / scale
        if self.dual_data:
            scale = scales[-1]
            data = cast(Fit, self.smooth).prox_conjugate(scale * u[DATA], sigma * scale**2)
            proxed[DATA] = data / scale
        return proxed

    # Lower bounds.

    def lower_bound(self, u: Blocks) -> Tensor:
        """Return the bound of a dual point.

        If u has no block for the data, the dual point of the data is that of the start.
        """
        first = next(iter(u.values()), None)
        return self.bound_of_pair(self.start(None if first is None else len(first)), u)

    def bound_of_pair(self, x: Tensor, u: Blocks) -> Tensor:
        """Return the best bound of a dual point u and a primal point x.

        If u has no block for the data, v = ∇d(ZAx) is the dual point of the data.
        """
        dual = self._unscaled(self.prox_G_conjugate(u, 0.0))
        if isinstance(self.smooth, Fit) and not self.dual_data:
            dual = dual._replace(data=self.smooth.misfit_gradient(self.smooth.observe(x)))
        return self._bound(x, dual)

    def proving_points(self, x: Tensor, u: Blocks | None = None) -> list[Dual]:
        """Return dual points from which the bound of a pair can be recomputed.

        Args:
            x: Primal point.
            u: Dual point; None for the dual point of :meth:`bound_at`.
        """
        data: Tensor | None = None
        if isinstance(self.smooth, Fit):
            data = self.smooth.misfit_gradient(self.smooth.observe(x))
        if u is None:
            dual = Dual([tree_map(torch.zeros_like, term.K(x)) for term in self._terms], data)
        else:
            dual = self._unscaled(self.prox_G_conjugate(u, 0.0))
            dual = dual if self.dual_data else dual._replace(data=data)
        level = self._level(x)
        points = proving_points(self.smooth, self._terms, self.domain, x, dual, level)
        if self.domain.bounded and dual.data is not data:
            # f₀(x) + ⟨∇f₀(x), x' − x⟩ = ⟨v, ZAx'⟩ − d*(v) for v = ∇d(ZAx)
            at_x = dual._replace(data=data)
            points += proving_points(self.smooth, self._terms, self.domain, x, at_x, level)
        return points

    def bound_at(self, x: Tensor, convexity: float | None = None) -> Tensor | None:
        """Return the bound of the dual point v = ∇d(ZAx), u = 0, if f₀ is a :class:`Fit`.

        If f₀ is not a Fit, or f is strongly convex and a term asks for its tangent, return the
        bound of :meth:`Problem.bound_at`, if f is smooth.
        """
        if self.linearised:
            mu = self.strong_convexity() if convexity is None else convexity
            if mu > 0 and not any(math.isinf(term.curvature) for term in self._terms):
                return super().bound_at(x, mu)
        if self._weakly_convex:
            return None
        if isinstance(self.smooth, Fit):
            zeros = [tree_map(torch.zeros_like, term.K(x)) for term in self._terms]
            v = self.smooth.misfit_gradient(self.smooth.observe(x))
            return self._bound(x, Dual(zeros, v))
        return super().bound_at(x, convexity) if math.isfinite(self.smoothness()) else None

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Add the errors of f₀ and of all terms."""
        total = self.smooth.value_error(x, self.smooth.value(x))
        for term in self._terms:
            total = total + term.value_error(x, term.value(x))
        return total + unit(len(self.parts), value.dtype) * value.abs()

    def gradient_error(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Add the errors of ∇f₀ and of all terms."""
        smooth_gradient = cast(Tensor, self.smooth.grad(x))
        total = self.smooth.gradient_error(x, smooth_gradient)
        for term in self._terms:
            total = total + term.gradient_error(x)
        rounding = unit(len(self.parts), x.dtype)
        return total + rounding * (norm(gradient) + norm(smooth_gradient))

    def _bound(self, x: Tensor, dual: Dual) -> Tensor:
        """Return the bound of a dual point; finite bounds are at least 0 for a :class:`Fit`.

        Minimisers are not above the start nor above x.
        """
        level = self._level(x)
        bound = dual_bound(self.smooth, self._terms, self.domain, x, dual, level)
        if not isinstance(self.smooth, Fit):
            return bound
        bound = torch.where(bound.isfinite(), bound.clamp(min=0), bound)
        for term in self._terms:
            bound = term.charged(bound)
        return bound

    def _level(self, x: Tensor) -> Tensor:
        """Return a value that minimisers do not exceed, (batch,)."""
        return torch.minimum(self.value(self.start(len(x))), self.value(self.project(x)))

    def _unscaled(self, u: Blocks) -> Dual:
        """Return the dual points κⱼuⱼ of the terms and κv of the data."""
        scales = self.block_scales
        terms = [self._blocks_of(index, u, scales[index]) for index in range(len(self.parts))]
        return Dual(terms, scales[-1] * u[DATA] if self.dual_data else None)

    def _blocks_of(self, index: int, u: Blocks, scale: float) -> Blocks:
        """Return the blocks of one term under the term's own names, multiplied by ``scale``."""
        blocks = {name: u[_block_name(index, name)] for name in self._terms[index].blocks}
        return blocks if scale == 1 else {name: scale * block for name, block in blocks.items()}


def _block_name(index: int, name: str) -> str:
    """Return the name of a block in K; terms after the first append their number."""
    return f"{name} {index + 1}" if index else name


def _common_batch(smooth: Problem, terms: Sequence[Term]) -> int | None:
    """Return the number of problems; raise if the data and the weights disagree."""
    batches = {len(t.weight) for t in terms if isinstance(t.weight, Tensor) and t.weight.ndim}
    if smooth.batch is not None:
        batches.add(smooth.batch)
    if len(batches) > 1:
        raise ValueError(
            f"data and weights must have the same number of problems, got {sorted(batches)}"
        )
    return next(iter(batches), None)
