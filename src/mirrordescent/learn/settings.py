"""Settings for learning: the meta-steps, their optimiser, and validation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from mirrordescent.learn.objective import Objective

LARGEST = {"horizon": 100_000, "batch": 10_000}
"""Largest sensible values. A larger value is probably a typing error."""
LARGEST_COUNT = 10**9


@dataclass(frozen=True)
class Descent:
    """The optimiser of the meta-steps: Adam.

    Args:
        learning_rate: Learning rate of the first meta-step.
        decay: Schedule of the learning rate. ``"cosine"`` decays it to 0 at the end.
        betas: Decay rates of Adam's averages.
        clip: Bound on the norm of the meta-gradient, or None.
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
    """Choice of the best parameters on held-out problems.

    Args:
        every: Number of meta-steps between validations.
        batch: Number of held-out problems.
        horizons: Lengths of the runs in multiples of N. Beyond 1 the step sizes are extended, so
            that maps which diverge later score worse.
        patience: Number of validations without progress after which learning stops, or None.
        geometric: Whether the mean over problems is geometric, so that a few hard problems do not
            dominate.
    """

    every: int = 100
    batch: int = 8
    horizons: tuple[float, ...] = (1.0, 5.0)
    patience: int | None = None
    geometric: bool = False

    def __post_init__(self) -> None:
        _require_count(every=self.every, batch=self.batch)


@dataclass(frozen=True)
class Settings:
    """Settings for :func:`~mirrordescent.learn.learn`.

    Args:
        meta_steps: Number of updates of the parameters.
        batch: Number of problems per update, over all processes.
        horizon: Number N of unrolled steps.
        curriculum: Pairs (meta-step, horizon): before this meta-step, this smaller horizon is used.
        objective: Loss to minimise.
        optimiser: Optimiser of the meta-steps.
        step_bounds: Bounds on the step sizes of a :class:`~mirrordescent.schedules.Prefix`, or
            None.
        validation: Choice of the best parameters.
        save_every: Number of meta-steps between checkpoints.
        seed: Seed for the problems and for the noise of the oracle.
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
        _require_count(
            meta_steps=self.meta_steps,
            batch=self.batch,
            horizon=self.horizon,
            save_every=self.save_every,
        )

    def horizon_at(self, meta_step: int) -> int:
        """Return the horizon N at a meta-step."""
        for until, horizon in sorted(self.curriculum):
            if meta_step < until:
                return horizon
        return self.horizon


def _require_count(**counts: int) -> None:
    """Raise unless every number is at least 1 and not absurdly large."""
    for name, count in counts.items():
        largest = LARGEST.get(name, LARGEST_COUNT)
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
        if count > largest:
            raise ValueError(f"{name} must be at most {largest}, got {count}")
