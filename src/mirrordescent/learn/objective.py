"""The loss of learning: Σ_k w_k f(x_k) + s · inconsistency."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Generator, Tensor

from mirrordescent.learn.evolution import Evolution
from mirrordescent.learn.families import Draw
from mirrordescent.learn.unrolling import Differentiation, Full, require_differentiation, unroll
from mirrordescent.methods.base import Method
from mirrordescent.mirrors.learned import NormName
from mirrordescent.oracles import Default, FirstOrder, Oracle
from mirrordescent.trees import Tree

Weights = Literal["sum", "last", "log_value", "log_gap"]
PenaltyPoints = Literal["ends", "all"]


@runtime_checkable
class Inconsistent(Protocol):
    """A map whose ``to_primal`` is only close to the inverse of ``to_dual``."""

    def inconsistency(self, x: Tree, norm: NormName = "l1") -> Tensor:
        """Return ‖(∇M*∘∇M − I)x‖ for every sample."""


@dataclass(frozen=True)
class Objective:
    """Loss of a run of a method, and how it is differentiated.

    Args:
        weights: Weights of the iterates. ``"sum"`` is f(x_1) + … + f(x_N); ``"last"`` is f(x_N).
            ``"log_value"`` and ``"log_gap"`` are sums of logarithms, of f(x_k) or of f(x_k) −
            lower, in which every step counts relative to its size. ``"log_gap"`` needs a family
            with lower bounds.
        floor: Smallest gap in ``"log_gap"``, relative to f(x₀) − lower. Smaller gaps are replaced
            by it, because the lower bounds are not more accurate.
        penalty: Weight s of the inconsistency of a learned pair. Exact maps do not use it.
        penalty_growth: Factor by which s grows every ``penalty_every`` meta-steps.
        penalty_every: Number of meta-steps between increases of s.
        penalty_points: Points at which the inconsistency is measured: x_0 and x_N (``"ends"``), or
            all iterates (``"all"``).
        penalty_norm: Norm of the inconsistency: entrywise ℓ₁ or ℓ₂, or the mean of absolute
            entries. The mean does not grow with the size of an image, and lets maps of images move
            away from the identity.
        every: Number of steps between evaluations of f, or a list of steps. The last step is always
            evaluated.
        differentiation: Kind of differentiation. :class:`Full`, :class:`Checkpointed` and
            :class:`Truncated` keep different parts of the graph; :class:`Evolution` needs no
            derivatives.
        through_gradient: Whether the meta-gradient passes through ∇f. If not, ∇f is treated as a
            constant (first order).
    """

    weights: Weights = "sum"
    floor: float = 0.0
    penalty: float = 1.0
    penalty_growth: float = 1.05
    penalty_every: int = 50
    penalty_points: PenaltyPoints = "ends"
    penalty_norm: NormName = "l1"
    every: int | Sequence[int] = 1
    differentiation: Differentiation = field(default_factory=Full)
    through_gradient: bool = True

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("weights", self.weights, get_args(Weights)),
            ("penalty_points", self.penalty_points, get_args(PenaltyPoints)),
            ("penalty_norm", self.penalty_norm, get_args(NormName)),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        require_differentiation(self.differentiation)
        if self.penalty < 0 or self.penalty_growth < 1 or self.penalty_every < 1:
            raise ValueError(
                "penalty must be ≥ 0, penalty_growth ≥ 1 and penalty_every ≥ 1, got "
                f"{self.penalty}, {self.penalty_growth} and {self.penalty_every}"
            )
        steps = [self.every] if isinstance(self.every, int) else self.every
        if min(steps, default=0) < 1:
            raise ValueError(
                f"every must be at least 1, or a list of such numbers, got {self.every}"
            )
        if isinstance(self.differentiation, Evolution) and not self.through_gradient:
            raise ValueError("Evolution takes no derivatives and needs through_gradient=True")

    def resolve_oracle(self, method: Method[Any], oracle: Oracle | None = None) -> Oracle:
        """Return the oracle for the method, or raise if the method cannot use it."""
        oracle = oracle or Default()
        method.resolve_oracle(oracle)
        if self.through_gradient:
            return oracle
        try:
            method.resolve_oracle(FirstOrder(oracle))
        except TypeError as error:
            raise TypeError(f"through_gradient=False cannot be honoured: {error}") from None
        return FirstOrder(oracle)

    def losses(
        self,
        method: Method[Any],
        draw: Draw,
        horizon: int,
        meta_step: int,
        oracle: Oracle | None = None,
        generator: Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of every problem and the values of f.

        The losses have the shape (batch,). The values at the evaluated steps have the shape
        (evaluations, batch) and no graph.
        """
        mirror: object = method.mirror
        penalised = mirror if self.penalty > 0 and isinstance(mirror, Inconsistent) else None

        def measure(k: int, x: Tree) -> Tensor:
            value = draw.problem.value(x)
            if penalised is None or (self.penalty_points == "ends" and k < horizon):
                return torch.stack([value, torch.zeros_like(value)])
            # Both numbers are returned together, so that a checkpointed run need not keep the
            # iterate for the penalty.
            return torch.stack([value, penalised.inconsistency(x, self.penalty_norm)])

        def judge(measured: list[Tensor]) -> Tensor:
            values, penalties = torch.stack(measured).unbind(1)
            loss = penalties.sum(0)
            if penalised is not None:
                at_start = penalised.inconsistency(draw.x0, self.penalty_norm)
                loss = self.penalty_at(meta_step) * (loss + at_start)
            return torch.cat([(loss + self._weigh(values, draw)).unsqueeze(0), values])

        results = unroll(
            method,
            draw.problem,
            draw.x0,
            horizon,
            self.resolve_oracle(method, oracle),
            generator,
            differentiation=self.differentiation,
            every=self.every,
            measure=measure,
            judge=judge,
        )
        return results[0], results[1:].detach()

    def penalty_at(self, meta_step: int) -> float:
        """Return the weight s of the penalty at a meta-step."""
        return self.penalty * self.penalty_growth ** (meta_step // self.penalty_every)

    def _weigh(self, values: Tensor, draw: Draw) -> Tensor:
        """Combine the values (evaluations, batch) to a loss (batch,)."""
        match self.weights:
            case "sum":
                return values.sum(0)
            case "last":
                return values[-1]
            case "log_value":
                return values.log().sum(0)
            case "log_gap":
                if draw.lower is None:
                    raise ValueError("weights='log_gap' needs lower bounds: use a Pooled family")
                smallest = torch.full_like(draw.lower, torch.finfo(values.dtype).tiny)
                if self.floor:
                    first_gap = draw.problem.value(draw.x0) - draw.lower
                    smallest = torch.maximum(smallest, self.floor * first_gap)
                return (values - draw.lower).clamp(min=smallest).log().sum(0)
