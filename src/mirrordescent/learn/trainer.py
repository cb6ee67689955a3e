"""Learning a method by unrolling it on problems of a family."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch
from torch import nn

from mirrordescent.learn.checkpoint import Progress, RunDamaged, RunFolder
from mirrordescent.learn.distributed import average, join, share
from mirrordescent.learn.families import Draw, ProblemFamily, draw_seeds
from mirrordescent.learn.objective import Objective
from mirrordescent.methods.base import Method
from mirrordescent.oracles import Oracle
from mirrordescent.progress import ProgressBar
from mirrordescent.schedules import Prefix
from mirrordescent.solve.loop import solve


@dataclass(frozen=True)
class Settings:
    """How to learn.

    Args:
        meta_steps: how many updates of the parameters.
        batch: problems per update, over all processes.
        horizon: N, the unrolled steps.
        curriculum: pairs (meta-step, horizon): before that meta-step the smaller horizon is used.
        objective: what is minimised.
        learning_rate, decay: of Adam; ``"cosine"`` decays to 0 at the end.
        betas: of Adam.
        clip: bound on the norm of the meta-gradient; None for no bound.
        step_bounds: bounds on learned step sizes.
        validate_every: meta-steps between validations.
        validation_batch: held-out problems.
        validation_horizons: the horizons, in multiples of N, that are judged; beyond 1 the step sizes are extended,
            so that maps which blow up later lose.
        patience: validations without progress before stopping; None for never.
        save_every: meta-steps between checkpoints.
        seed: of the problems drawn and the oracle's noise.
    """

    meta_steps: int = 1200
    batch: int = 8
    horizon: int = 10
    curriculum: Sequence[tuple[int, int]] = ()
    objective: Objective = field(default_factory=Objective)
    learning_rate: float = 2e-3
    decay: Literal["cosine", "constant"] = "cosine"
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float | None = 1.0
    step_bounds: tuple[float, float] | None = (1e-3, 10.0)
    validate_every: int = 100
    validation_batch: int = 8
    validation_horizons: tuple[float, ...] = (1.0, 5.0)
    patience: int | None = None
    save_every: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("meta_steps", "batch", "horizon", "validate_every", "validation_batch", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if self.decay not in ("cosine", "constant"):
            raise ValueError(f"decay must be 'cosine' or 'constant', got {self.decay!r}")

    def horizon_at(self, meta_step: int) -> int:
        """N at a meta-step."""
        return next((horizon for until, horizon in sorted(self.curriculum) if meta_step < until), self.horizon)

    def learning_rate_at(self, meta_step: int) -> float:
        """Return the learning rate of a meta-step."""
        if self.decay == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * meta_step / self.meta_steps))


@dataclass(frozen=True)
class Learned:
    """The method with its best parameters, and how they were found."""

    method: Method[Any]
    best_step: int
    best_validation: float
    skipped: int
    seconds: float


def learn(
    family: ProblemFamily,
    method: Method[Any],
    settings: Settings | None = None,
    *,
    oracle: Oracle | None = None,
    folder: str | Path | None = None,
    resume: bool = True,
    progress: bool | None = None,
    callback: Callable[[int], object] | None = None,
) -> Learned:
    """Minimise Σ_k w_k f(x_k) + s · inconsistency over the parameters of a method: its map, schedules and oracle.

    Any method can be learned. The one given is changed in place and ends with the parameters that were best on
    held-out problems. With a ``folder``, the run is checkpointed there and logged as JSON lines; started again, a run
    that was interrupted goes on from its last checkpoint to the result it would have had. Started by ``torchrun``,
    the problems of every batch are shared among the processes.

    Args:
        family: where problems come from.
        method: what is learned.
        settings: how.
        oracle: how gradients are asked for; exact by default. Its parameters are learned too.
        folder: of the run; None keeps nothing on disk.
        resume: whether to go on where the folder's run stopped, or to start anew.
        progress: show a live display; by default on a terminal.
        callback: called with the number of every finished meta-step.
    """
    trainer = _Trainer(family, method, settings or Settings(), oracle, folder, resume)
    show = progress if trainer.rank == 0 else False
    with ProgressBar("learning", trainer.settings.meta_steps, show) as bar:
        return trainer.run(bar, callback)


class _Trainer:
    def __init__(
        self,
        family: ProblemFamily,
        method: Method[Any],
        settings: Settings,
        oracle: Oracle | None,
        folder: str | Path | None,
        resume: bool,
    ) -> None:
        self.family, self.method, self.oracle, self.settings = family, method, oracle, settings
        self.module = nn.ModuleDict({"method": method} | ({"oracle": oracle} if oracle is not None else {}))
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError(f"{type(method).__name__} has nothing to learn: no part of it has parameters")
        self.rank, self.world = join()
        self.optimiser = torch.optim.Adam(self.parameters, lr=settings.learning_rate, betas=settings.betas)
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.validation = family.validation(settings.validation_batch)
        self.progress = Progress(settings=_plain(asdict(settings)))
        self.best = copy.deepcopy(self.module.state_dict())
        self.folder = RunFolder(Path(folder)) if folder is not None and self.rank == 0 else None
        if folder is not None and resume:
            self._resume(RunFolder(Path(folder)))

    def _resume(self, folder: RunFolder) -> None:
        if not folder.exists:
            return
        progress, best = folder.load(self.module, self.optimiser, self.generator)
        if progress.settings != self.progress.settings:
            raise RunDamaged(f"{folder.path} holds a run with other settings: choose another folder, or resume=False")
        self.progress, self.best = progress, best

    def run(self, bar: ProgressBar, callback: Callable[[int], object] | None) -> Learned:
        began = perf_counter()
        state, settings = self.progress, self.settings
        if state.meta_step == 0:
            self._validate()  # what does not become better than it was is left as it was
        while state.meta_step < settings.meta_steps and not state.finished:
            loss = self._meta_step()
            state.meta_step += 1
            if state.meta_step % settings.validate_every == 0 or state.meta_step == settings.meta_steps:
                self._validate()
            if state.meta_step % settings.save_every == 0 or state.meta_step == settings.meta_steps or state.finished:
                self._save()
            bar.update(state.meta_step, f"loss {loss:.4g}, best validation {state.best_validation:.4g}")
            if callback is not None:
                callback(state.meta_step)
        if math.isfinite(state.best_validation):  # otherwise the last parameters are all there is
            self.module.load_state_dict(self.best)
        return Learned(self.method, state.best_step, state.best_validation, state.skipped, perf_counter() - began)

    def _meta_step(self) -> float:
        settings, step = self.settings, self.progress.meta_step
        # Every process draws the seeds of the whole batch and takes its share: the problems are those of one process.
        seeds = draw_seeds(settings.batch, self.generator)
        draw = self.family.draw(share(seeds, self.rank, self.world))
        horizon = settings.horizon_at(step)
        self.optimiser.zero_grad()
        losses, values = settings.objective.losses(self.method, draw, horizon, step, self.oracle, self.generator)
        loss = losses.mean()
        torch.autograd.backward(loss)
        reported = loss.detach().clone()
        average(self.parameters, reported, world=self.world)
        norm = nn.utils.clip_grad_norm_(self.parameters, settings.clip if settings.clip is not None else torch.inf)
        if bool(norm.isfinite() & reported.isfinite()):
            for group in self.optimiser.param_groups:
                group["lr"] = settings.learning_rate_at(step)
            self.optimiser.step()
            self._bound_steps()
        else:
            self.progress.skipped += 1
        if self.folder is not None:
            self.folder.log(
                meta_step=step,
                loss=float(reported),
                gradient_norm=float(norm),
                horizon=horizon,
                value=float(values[-1].mean()),
            )
        return float(reported)

    @torch.no_grad()
    def _bound_steps(self) -> None:
        if self.settings.step_bounds is not None:
            for part in self.module.modules():
                if isinstance(part, Prefix):
                    part.values.clamp_(*self.settings.step_bounds)

    def _validate(self) -> None:
        state = self.progress
        score = validation_score(self.method, self.validation, self.settings, self.oracle)
        if score < state.best_validation:
            state.best_validation, state.best_step = score, state.meta_step
            self.best = copy.deepcopy(self.module.state_dict())
        elif self.settings.patience is not None:
            waited = (state.meta_step - state.best_step) // self.settings.validate_every
            state.finished = waited >= self.settings.patience
        if self.folder is not None:
            self.folder.log(meta_step=state.meta_step, validation=score, best_validation=state.best_validation)

    def _save(self) -> None:
        if self.folder is not None:
            self.folder.save(self.progress, self.module, self.best, self.optimiser, self.generator)


@torch.no_grad()
def validation_score(method: Method[Any], draw: Draw, settings: Settings, oracle: Oracle | None = None) -> float:
    """Return the mean over held-out problems of (f(x_k) − lower) / (f(x₀) − lower), its geometric mean over horizons.

    Without lower bounds, lower is 0. A run that fails counts with infinity.
    """
    horizons = sorted({max(1, round(share * settings.horizon)) for share in settings.validation_horizons})
    solution = solve(
        draw.problem,
        method,
        draw.x0,
        iterations=horizons[-1],
        oracle=oracle,
        generator=torch.Generator().manual_seed(settings.seed),
        trace=horizons,
        progress=False,
    )
    if not solution.ok:
        return float("inf")
    lower = torch.zeros_like(solution.value) if draw.lower is None else draw.lower
    # Relative to x₀ as it was given: where a map has learned its own start, the first iterate is another.
    gaps = ((solution.trace.values - lower) / (draw.problem.value(draw.x0) - lower)).mean(1)
    return float(gaps.clamp(min=torch.finfo(gaps.dtype).tiny).log().mean().exp())


def _plain(value: Any) -> Any:
    """Return settings as JSON would give them back."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
