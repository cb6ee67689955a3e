"""Problems that are put together: a smooth function, terms such as norms and total variations, and
a set.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from mirrordescent.domains import Box, Domain, PositiveOrthant, WholeSpace
from mirrordescent.parts import Config
from mirrordescent.problems.base import Problem
from mirrordescent.problems.duality import Dual, add_adjoints, dual_bound
from mirrordescent.problems.fits import Fit, SquaredError
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.problems.terms import L1, Blocks, Term
from mirrordescent.trees import Tree, norm

DATA = "data"


class Composite(Problem, SaddlePoint):
    """f(x) = f₀(x) + Σⱼ hⱼgⱼ(Kⱼx) on a set X: whatever is smooth, and terms with kinks, operators
    and constraints.

    Value, gradient (one of the subgradients at kinks), gradients with rounded kinks, proximal
    operators, the domain, the saddle-point form, lower bounds, and with them certificates and the
    classical solvers that fit: all of it comes from the parts, for a batch of problems with data,
    weights and operators of their own.

    The saddle-point form has the terms in G. f₀ is in F if it has a prox or is no :class:`Fit`;
    else its data are one more block of G, d(ZAx). All blocks of K are scaled to the same norm.

    Bounds on min f come from dual points. Those of a Fit are made feasible by a term that can
    absorb what is left of Kᵀu (L1 with an orthonormal operator, TV, a ridge), or on x ≥ 0 by
    raising the data's part; those of any f₀ by linearising it, if it is strongly convex or X is
    bounded.

    Args:
        smooth: f₀, such as :class:`~mirrordescent.problems.SquaredError`,
            :class:`~mirrordescent.problems.Counts`,
            :class:`~mirrordescent.problems.LogisticRegression`, or any problem that knows its
            ``smoothness``.
        terms: L1, TV, Roughness, Ridge or terms of your own; and at most one set, such as
            NonNegative(), Box(0, 1) or Simplex().

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
            raise TypeError(f"terms must be terms or sets, got {type(wrong[0]).__name__}")
        if len(sets) > 1:
            raise ValueError(
                "there can be one set only: write the set that is common to them, such as Box(0, 1)"
            )
        if smooth.sample_shape is None:
            raise ValueError(
                f"{type(smooth).__name__} does not know the shape of its points, which terms need"
            )
        batches = {len(t.weight) for t in added if isinstance(t.weight, Tensor) and t.weight.ndim}
        if smooth.batch is not None:
            batches.add(smooth.batch)
        if len(batches) > 1:
            raise ValueError(
                f"data and weights disagree on the number of problems: {sorted(batches)}"
            )
        super().__init__(next(iter(batches), None), smooth.sample_shape)
        if smooth.smoothness() in (None, math.inf):
            raise ValueError(
                f"{type(smooth).__name__} is not known to be smooth: what has kinks belongs to the terms"
            )
        self.smooth = smooth
        self.parts = nn.ModuleList(added)
        self.domain = sets[0] if sets else smooth.domain
        like = next(smooth.buffers()).new_zeros(self.batch or 1, *self.sample_shape)
        for term in self._terms:
            term.prepare(like)
        separable = isinstance(self.domain, WholeSpace | PositiveOrthant | Box) and isinstance(
            smooth, Fit
        )
        simple = isinstance(self.domain, WholeSpace) or (separable and cast(Fit, smooth).separable)
        prox = isinstance(smooth, SquaredError) and smooth.proximable and simple
        self.dual_data = isinstance(smooth, Fit) and not prox
        """Whether the data are a block of G."""
        self.proximable = isinstance(smooth, Fit)

    def config(self) -> Config:
        return {"smooth": self.smooth, "terms": [*self.parts, self.domain]}

    @property
    def _terms(self) -> list[Term]:
        return list(cast("Sequence[Term]", self.parts))

    @property
    def convex(self) -> bool | None:  # type: ignore[override]
        """Whether f₀ is: the terms are."""
        return self.smooth.convex

    @property
    def never_below(self) -> float | None:  # type: ignore[override]
        return self.smooth.never_below

    def value(self, x: Tensor) -> Tensor:
        value = self.smooth.value(x)
        for term in self._terms:
            value = value + term.value(x)
        return value

    def grad(self, x: Tensor) -> Tensor:
        return self.smoothed_grad(x, 0.0)

    def smoothed_grad(self, x: Tensor, width: float | Tensor) -> Tensor:
        """Replace |d| by the Huber function that is quadratic for |d| ≤ width, in every term."""
        out = cast(Tensor, self.smooth.grad(x))
        if self.parts and not isinstance(self.smooth, Fit):
            out = out.clone()  # which may be the problem's own memory
        for term in self._terms:
            out = term.add_gradient(out, x, width)
        return out

    @property
    def kink(self) -> float | Tensor | None:
        """h, if one term has kinks."""
        kinked = [term for term in self._terms if term.kinked]
        return kinked[0].height if len(kinked) == 1 else None

    def smoothness(self) -> float:
        return cast(float, self.smooth.smoothness()) + sum(term.curvature for term in self._terms)

    def strong_convexity(self) -> float:
        return (self.smooth.strong_convexity() or 0.0) + sum(term.convexity for term in self._terms)

    def minimiser(self, tolerance: float) -> tuple[Tensor, Tensor] | None:
        """That of f₀, if there is nothing else, and no set."""
        alone = not self.parts and isinstance(self.domain, WholeSpace)
        return self.smooth.minimiser(tolerance) if alone else None

    def start(self, batch: int | None = None) -> Tensor:
        """Return the start of f₀, moved into X."""
        start = cast(Tensor, self.smooth.start(self.batch or batch))
        return (
            start
            if isinstance(self.domain, WholeSpace)
            else cast(Tensor, self.domain.project(start))
        )

    def features(self, x0: Tensor | None = None) -> dict[str, Tensor]:
        """Return log(hⱼ‖Kⱼ‖√n / ‖∇f₀(0)‖) of every term, which changing the unit of x or of f
        leaves as it is, and the features of f₀.
        """
        described = dict(self.smooth.features(x0))
        pull = norm(self.smooth.grad(cast(Tensor, self.smooth.start(self.batch)) * 0)).double()
        scale = math.sqrt(math.prod(self.sample_shape)) / pull.clamp(min=1e-30)
        for place, term in enumerate(self._terms):
            height = torch.as_tensor(term.height, dtype=torch.float64, device=pull.device)
            described[f"term {place + 1}"] = (height * term.norm * scale).clamp(1e-12, 1e12).log()
        return described

    def proximal(self) -> tuple[Problem, Callable[[Tree, Tensor], Tree]] | None:
        """Return what is smooth, and the prox of the rest with one step length per sample, if that
        is simple.

        It is with at most one term with kinks, which is an L1 with KᵀK = I; and X must be all of
        Rⁿ, or K = I and X a product of intervals.
        """
        kinked = [term for term in self._terms if math.isinf(term.curvature)]
        whole = isinstance(self.domain, WholeSpace)
        if not kinked:
            return None  # methods project by themselves
        one = kinked[0]
        if len(kinked) > 1 or not isinstance(one, L1) or not one.invertible:
            return None
        if not whole and not (
            one.operator is None and isinstance(self.domain, PositiveOrthant | Box)
        ):
            return None
        return self._without(kinked), lambda x, t: self.domain.project(one.prox(cast(Tensor, x), t))

    def _without(self, terms: list[Term]) -> Problem:
        """Return the problem of the other terms, which shares all with this one."""
        rest = copy.copy(self)
        rest._modules = {
            **self._modules,
            "parts": nn.ModuleList(t for t in self._terms if t not in terms),
        }
        return rest

    # The saddle-point form F(x) + G(Kx).

    def saddle_point(self) -> SaddlePoint | None:
        """Return this problem, unless there is nothing for a dual variable to stand for."""
        return self if self.dual_data or self.parts else None

    def explicit(self) -> SaddlePoint:
        """Return the form with f₀ in F, for methods that use its gradient."""
        if not self.dual_data or not self.parts:
            return self
        form = copy.copy(self)
        form.dual_data = False
        return form

    @property
    def ratio(self) -> float | None:
        """None: it depends on the scales of x and f."""
        return None

    @property
    def block_norms(self) -> list[float]:
        """‖Kⱼ‖ of the blocks, that of the data last."""
        fit = cast(Fit, self.smooth)
        return [term.norm for term in self._terms] + ([fit.operator_norm] if self.dual_data else [])

    @property
    def block_scales(self) -> list[float]:
        """κⱼ, which make the norms of κⱼKⱼ the same: else the steps of one block would have to be
        too short.
        """
        norms = self.block_norms
        return [max(norms) / each for each in norms]

    @property
    def K_norm(self) -> float:
        """√(Σ ‖κⱼKⱼ‖²) ≥ ‖K‖."""
        norms = self.block_norms
        return math.hypot(*(a * b for a, b in zip(self.block_scales, norms, strict=True))) or 1.0

    def K(self, x: Tensor) -> Blocks:
        """The blocks κⱼKⱼx, and κZAx if the data are in G."""
        blocks = {}
        scales = self.block_scales
        for place, (term, scale) in enumerate(zip(self._terms, scales, strict=False)):
            for name, block in term.K(x).items():
                blocks[_named(place, name)] = block if scale == 1 else scale * block
        if self.dual_data:
            blocks[DATA] = scales[-1] * cast(Fit, self.smooth).seen(x)
        return blocks

    def K_adjoint(self, u: Blocks) -> Tensor:
        """ΣκⱼKⱼᵀuⱼ, plus κAᵀZv if the data are in G."""
        first = next(iter(u.values()))
        dual = self._unscaled(u)
        out = first.new_zeros(len(first), *self.sample_shape)
        return add_adjoints(out, self.smooth, self._terms, dual)

    @property
    def F_convexity(self) -> float:
        """That of f₀, where F has an argmin: where every entry is observed directly."""
        return (
            (self.smooth.strong_convexity() or 0.0)
            if self.proximable and not self.dual_data
            else 0.0
        )

    @property
    def F_smoothness(self) -> float:
        """That of f₀, or 0 if its data are in G."""
        return 0.0 if self.dual_data else cast(float, self.smooth.smoothness())

    def grad_F(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x) if self.dual_data else cast(Tensor, self.smooth.grad(x))

    def project(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.domain.project(x))

    def prox_F(self, x: Tensor, tau: float | Tensor) -> Tensor:
        if self.dual_data:
            return self.project(x)
        if not self.proximable:
            raise TypeError(
                f"the F of a Composite of {type(self.smooth).__name__} has no prox: use CondatVu"
            )
        return self.project(cast(SquaredError, self.smooth).prox(x, tau))

    def argmin_F(self, w: Tensor) -> Tensor:
        return self.project(cast(SquaredError, self.smooth).argmin(w))

    def prox_G_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """That of every block, prox_{σκ²g*}(κu)/κ."""
        scales = self.block_scales
        proxed: Blocks = {}
        for place, (term, scale) in enumerate(zip(self._terms, scales, strict=False)):
            found = term.prox_conjugate(self._of(place, u, scale), sigma * scale**2)
            proxed |= {
                _named(place, name): block if scale == 1 else block / scale
                for name, block in found.items()
            }
        if self.dual_data:
            scale = scales[-1]
            proxed[DATA] = (
                cast(Fit, self.smooth).prox_conjugate(scale * u[DATA], sigma * scale**2) / scale
            )
        return proxed

    # Bounds.

    def lower_bound(self, u: Blocks) -> Tensor:
        """Return the bound of a dual point; if the data are not in it, theirs is that of
        the start.
        """
        first = next(iter(u.values()), None)
        return self.bound_of_pair(self.start(None if first is None else len(first)), u)

    def bound_of_pair(self, x: Tensor, u: Blocks) -> Tensor:
        """Return the best of the bounds that follow from a dual point, and a primal one that may
        belong to it.
        """
        dual = self._unscaled(self.prox_G_conjugate(u, 0.0))
        if isinstance(self.smooth, Fit) and not self.dual_data:
            dual = dual._replace(data=self.smooth.slope(self.smooth.seen(x)))
        return self._bound(x, dual)

    def bound_at(self, x: Tensor, convexity: float | None = None) -> Tensor | None:
        """Return the bound of the dual point of the gradient of f₀, with the terms absorbing it; or
        that of any f.
        """
        if isinstance(self.smooth, Fit):
            none = [
                {name: torch.zeros_like(block) for name, block in term.K(x).items()}
                for term in self._terms
            ]
            return self._bound(x, Dual(none, self.smooth.slope(self.smooth.seen(x))))
        return super().bound_at(x, convexity) if math.isfinite(self.smoothness()) else None

    def _bound(self, x: Tensor, dual: Dual) -> Tensor:
        level = self.value(self.start(len(x)))
        return dual_bound(self.smooth, self._terms, self.domain, x, dual, level)

    def _unscaled(self, u: Blocks) -> Dual:
        scales = self.block_scales
        terms = [
            self._of(place, u, scale)
            for place, scale in zip(range(len(self.parts)), scales, strict=False)
        ]
        return Dual(terms, scales[-1] * u[DATA] if self.dual_data else None)

    def _of(self, place: int, u: Blocks, scale: float) -> Blocks:
        """Return the blocks of one term, by their own names, times a number."""
        mine = {name: u[_named(place, name)] for name in self._terms[place].blocks}
        return mine if scale == 1 else {name: scale * block for name, block in mine.items()}


def _named(place: int, name: str) -> str:
    """Name a block: those of the first term by themselves."""
    return f"{name} {place + 1}" if place else name
