"""What is minimised: Σ_k w_k f(x_k) + s · inconsistency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Generator, Tensor

from mirrordescent.learn.evolution import evolution
from mirrordescent.learn.families import Draw
from mirrordescent.learn.unroll import Differentiation, unroll
from mirrordescent.methods.base import Method
from mirrordescent.oracles import Default, FirstOrder, Oracle
from mirrordescent.trees import Tree

Weights = Literal["sum", "last", "log_value", "log_gap"]
PenaltyPoints = Literal["ends", "all"]


@runtime_checkable
class Inconsistent(Protocol):
    """A map whose ``to_primal`` is only close to the inverse of ``to_dual``."""

    def inconsistency(self, x: Tree, norm: Literal["l1", "l2"] = "l1") -> Tensor:
        """‖(∇M*∘∇M − I)x‖ per sample."""


@dataclass(frozen=True)
class Objective:
    """How a run of a method is judged, and how that is differentiated.

    Args:
        weights: ``"sum"`` adds up f(x_1), …, f(x_N); ``"last"`` takes f(x_N); ``"log_value"`` and ``"log_gap"`` add up
            logarithms, of f(x_k) or of f(x_k) − lower, so that every step counts by its own measure. The latter
            needs a family that knows lower bounds.
        penalty: s, the weight of the inconsistency of a learned pair; unused for exact maps.
        penalty_growth, penalty_every: s is multiplied by the first every so many meta-steps.
        penalty_points: where it is measured: at x_0 and x_N (``"ends"``), or at all iterates.
        penalty_norm: entrywise ℓ₁ or ℓ₂.
        every: look at every so many steps only, or at those it names, and at the last.
        differentiation, segment: see :func:`~mirrordescent.learn.unroll.unroll`; or ``"evolution"``, without
            derivatives: see :func:`~mirrordescent.learn.evolution.evolution`.
        pairs, spread: of runs, and how far apart in the parameters, for ``"evolution"``.
        through_gradient: whether the meta-gradient passes through ∇f, or takes it as a constant (first order).
    """

    weights: Weights = "sum"
    penalty: float = 1.0
    penalty_growth: float = 1.05
    penalty_every: int = 50
    penalty_points: PenaltyPoints = "ends"
    penalty_norm: Literal["l1", "l2"] = "l1"
    every: int | Sequence[int] = 1
    differentiation: Differentiation | Literal["evolution"] = "full"
    segment: int | None = None
    pairs: int = 4
    spread: float = 0.1
    through_gradient: bool = True

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("weights", self.weights, get_args(Weights)),
            ("penalty_points", self.penalty_points, get_args(PenaltyPoints)),
            ("penalty_norm", self.penalty_norm, ("l1", "l2")),
            ("differentiation", self.differentiation, (*get_args(Differentiation), "evolution")),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        if self.penalty < 0 or self.penalty_growth < 1 or self.penalty_every < 1:
            raise ValueError("the penalty must be ≥ 0, its growth ≥ 1, and penalty_every ≥ 1")
        if min([self.every] if isinstance(self.every, int) else self.every, default=0) < 1:
            raise ValueError(f"every must be at least 1, or such numbers, got {self.every}")
        if self.pairs < 1 or not self.spread > 0:
            raise ValueError(f"pairs must be at least 1 and spread positive, got {self.pairs} and {self.spread}")

    def losses(
        self,
        method: Method[Any],
        draw: Draw,
        horizon: int,
        meta_step: int,
        oracle: Oracle | None = None,
        generator: Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of every problem (batch,), and f where it was looked at, (looks, batch), without a graph."""
        oracle = oracle or Default()
        if self.differentiation != "evolution":
            return self._unrolled(method, draw, horizon, meta_step, oracle, generator, self.differentiation)
        if generator is None:
            raise ValueError("differentiation='evolution' needs a generator")
        return evolution(
            lambda random: self._unrolled(method, draw, horizon, meta_step, oracle, random, "full"),
            [p for part in (method, oracle) for p in part.parameters() if p.requires_grad],
            self.pairs,
            self.spread,
            generator,
        )

    def _unrolled(
        self,
        method: Method[Any],
        draw: Draw,
        horizon: int,
        meta_step: int,
        oracle: Oracle,
        generator: Generator | None,
        differentiation: Differentiation,
    ) -> tuple[Tensor, Tensor]:
        mirror = method.mirror
        penalised = mirror if self.penalty > 0 and isinstance(mirror, Inconsistent) else None

        def measure(k: int, x: Tree) -> Tensor:
            value = draw.problem.value(x)
            if penalised is None or (self.penalty_points == "ends" and k < horizon):
                return torch.stack([value, torch.zeros_like(value)])
            # Both numbers leave the segment together, so that a checkpointed run keeps no iterate for the penalty.
            return torch.stack([value, penalised.inconsistency(x, self.penalty_norm)])

        measured = torch.stack(
            unroll(
                method,
                draw.problem,
                draw.x0,
                horizon,
                oracle if self.through_gradient else FirstOrder(oracle),
                generator,
                differentiation=differentiation,
                segment=self.segment,
                every=self.every,
                measure=measure,
            )
        )
        values, loss = measured[:, 0], measured[:, 1].sum(0)
        if penalised is not None:
            loss = self.penalty_at(meta_step) * (loss + penalised.inconsistency(draw.x0, self.penalty_norm))
        return loss + self._weigh(values, draw.lower), values.detach()

    def penalty_at(self, meta_step: int) -> float:
        """s at a meta-step."""
        return self.penalty * self.penalty_growth ** (meta_step // self.penalty_every)

    def _weigh(self, values: Tensor, lower: Tensor | None) -> Tensor:
        match self.weights:
            case "sum":
                return values.sum(0)
            case "last":
                return values[-1]
            case "log_value":
                return values.log().sum(0)
            case "log_gap":
                if lower is None:
                    raise ValueError("weights='log_gap' needs lower bounds: use a Pooled family")
                return (values - lower).clamp(min=torch.finfo(values.dtype).tiny).log().sum(0)
