"""How to learn: the meta-steps, their optimiser, and validation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mirrordescent.learn.objective import Objective

MOST = {"horizon": 100_000, "batch": 10_000}  # more is a slip of the pen


@dataclass(frozen=True)
class Descent:
    """The optimiser of the meta-steps, Adam.

    Args:
        learning_rate: that of the first meta-step.
        decay: ``"cosine"`` decays it to 0 at the end.
        betas: those of Adam.
        clip: bound on the norm of the meta-gradient; None for no bound.
    """

    learning_rate: float = 2e-3
    decay: Literal["cosine", "constant"] = "cosine"
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float | None = 1.0

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if self.decay not in ("cosine", "constant"):
            raise ValueError(f"decay must be 'cosine' or 'constant', got {self.decay!r}")

    def learning_rate_at(self, meta_step: int, meta_steps: int) -> float:
        """Return the learning rate at a meta-step."""
        if self.decay == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * meta_step / meta_steps))


@dataclass(frozen=True)
class Validation:
    """How the best parameters are found, on held-out problems.

    Args:
        every: meta-steps between validations.
        batch: the number of problems.
        horizons: where runs are judged, in multiples of N; beyond 1 the step sizes are extended, so
            that maps which blow up later lose.
        patience: validations without progress before stopping; None for never.
        geometric: whether the mean over problems is geometric too, so that a few hard ones do not
            decide.
    """

    every: int = 100
    batch: int = 8
    horizons: tuple[float, ...] = (1.0, 5.0)
    patience: int | None = None
    geometric: bool = False

    def __post_init__(self) -> None:
        _require_positive(self, "every", "batch")


@dataclass(frozen=True)
class Settings:
    """How to learn.

    Args:
        meta_steps: how many updates of the parameters.
        batch: problems per update, over all processes.
        horizon: N, the unrolled steps.
        curriculum: pairs (meta-step, horizon): before that meta-step, this smaller horizon is used.
        objective: what is minimised.
        optimiser: the optimiser of the meta-steps.
        step_bounds: bounds on the step sizes of a :class:`~mirrordescent.schedules.Prefix`; None
            for no bounds.
        validation: how the best parameters are chosen.
        save_every: meta-steps between checkpoints.
        seed: determines the problems drawn and the oracle's noise.
    """

    meta_steps: int = 1200
    batch: int = 8
    horizon: int = 10
    curriculum: Sequence[tuple[int, int]] = ()
    objective: Objective = field(default_factory=Objective)
    optimiser: Descent = field(default_factory=Descent)
    step_bounds: tuple[float, float] | None = (1e-3, 10.0)
    validation: Validation = field(default_factory=Validation)
    save_every: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        _require_positive(self, "meta_steps", "batch", "horizon", "save_every")

    def horizon_at(self, meta_step: int) -> int:
        """N at a meta-step."""
        return next(
            (horizon for until, horizon in sorted(self.curriculum) if meta_step < until),
            self.horizon,
        )


def _require_positive(settings: Any, *names: str) -> None:
    for name in names:
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(settings, name)}")
        if getattr(settings, name) > (most := MOST.get(name, 10**9)):
            raise ValueError(f"{name} must be at most {most}, got {getattr(settings, name)}")
