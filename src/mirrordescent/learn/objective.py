"""What is minimised: Σ_k w_k f(x_k) + s · inconsistency."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Generator, Tensor

from mirrordescent.learn.evolution import Evolution
from mirrordescent.learn.families import Draw
from mirrordescent.learn.unroll import Differentiation, Full, require_differentiation, unroll
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
        """‖(∇M*∘∇M − I)x‖ per sample."""


@dataclass(frozen=True)
class Objective:
    """How a run of a method is judged, and how that is differentiated.

    Args:
        weights: ``"sum"`` adds up f(x_1), …, f(x_N); ``"last"`` takes f(x_N); ``"log_value"`` and
            ``"log_gap"`` add up logarithms, of f(x_k) or of f(x_k) − lower, so that every step
            counts relative to its size. The latter needs a family that knows lower bounds.
        floor: gaps below this share of f(x₀) − lower count as much as it, in ``"log_gap"``: bounds
            are only so tight.
        penalty: s, the weight of the inconsistency of a learned pair; unused for exact maps.
        penalty_growth: s is multiplied by this every ``penalty_every`` meta-steps.
        penalty_every: see ``penalty_growth``.
        penalty_points: where the inconsistency is measured: at x_0 and x_N (``"ends"``), or at all
            iterates.
        penalty_norm: its norm, entrywise ℓ₁ or ℓ₂, or the mean of absolute entries, which does not
            grow with the size of an image and leaves maps of images free to move away from the
            identity.
        every: the number of steps between looks, or the steps to look at. The last is always looked
            at.
        differentiation: :class:`Full`, :class:`Checkpointed` and :class:`Truncated` keep more or
            less of the graph; :class:`Evolution` needs no derivatives.
        through_gradient: whether the meta-gradient passes through ∇f, or treats it as a constant
            (first order).
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
            raise ValueError("the penalty must be ≥ 0, its growth ≥ 1, and penalty_every ≥ 1")
        if min([self.every] if isinstance(self.every, int) else self.every, default=0) < 1:
            raise ValueError(
                f"every must be at least 1, or a list of such numbers, got {self.every}"
            )
        if isinstance(self.differentiation, Evolution) and not self.through_gradient:
            raise ValueError(
                "through_gradient=False has no meaning for Evolution, which takes no derivatives"
            )

    def resolve_oracle(self, method: Method[Any], oracle: Oracle | None = None) -> Oracle:
        """Return the oracle that the method is given, or raise if the method cannot honour it."""
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
        """Return the loss of every problem (batch,), and f where it was looked at, (looks, batch),
        without a graph.
        """
        mirror: object = method.mirror
        penalised = mirror if self.penalty > 0 and isinstance(mirror, Inconsistent) else None

        def measure(k: int, x: Tree) -> Tensor:
            value = draw.problem.value(x)
            if penalised is None or (self.penalty_points == "ends" and k < horizon):
                return torch.stack([value, torch.zeros_like(value)])
            # Both numbers leave the segment together, so that a checkpointed run keeps no iterate
            # for the penalty.
            return torch.stack([value, penalised.inconsistency(x, self.penalty_norm)])

        def judge(measured: list[Tensor]) -> Tensor:
            values, penalties = torch.stack(measured).unbind(1)
            loss = penalties.sum(0)
            if penalised is not None:
                loss = self.penalty_at(meta_step) * (
                    loss + penalised.inconsistency(draw.x0, self.penalty_norm)
                )
            return torch.cat([(loss + self._weigh(values, draw)).unsqueeze(0), values])

        found = unroll(
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
        return found[0], found[1:].detach()

    def penalty_at(self, meta_step: int) -> float:
        """s at a meta-step."""
        return self.penalty * self.penalty_growth ** (meta_step // self.penalty_every)

    def _weigh(self, values: Tensor, draw: Draw) -> Tensor:
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
                least = torch.full_like(draw.lower, torch.finfo(values.dtype).tiny)
                if self.floor:
                    least = torch.maximum(
                        least, self.floor * (draw.problem.value(draw.x0) - draw.lower)
                    )
                return (values - draw.lower).clamp(min=least).log().sum(0)
