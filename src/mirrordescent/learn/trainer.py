"""Learning a method by unrolling it on problems of a family."""

import copy
import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from mirrordescent._internal.interruption import Interrupted, Interruption
from mirrordescent._internal.progress import ProgressBar
from mirrordescent.learn.checkpoint import Progress, RunDamaged, RunFolder
from mirrordescent.learn.distributed import average, join, share
from mirrordescent.learn.families import Draw, ProblemFamily, draw_seeds, reference_of
from mirrordescent.learn.settings import Settings
from mirrordescent.learn.tables import plain
from mirrordescent.methods.base import GradientMethod, Method, Wrapper
from mirrordescent.mirrors.inverse_check import require_inverse
from mirrordescent.oracles import Oracle
from mirrordescent.schedules import Prefix
from mirrordescent.solving.loop import solve
from mirrordescent.trees import Tree


class NothingLearned(UserWarning):
    """A method is no better after learning than before, or this cannot be judged."""


@dataclass(frozen=True)
class Learned:
    """The method with its best parameters, and how they were found.

    Args:
        method: the method that was given.
        best_step: after how many meta-steps it was best on held-out problems; 0: before the first.
        best_validation: its score then, see :func:`validation_score`.
        meta_steps: how many there were.
        skipped: how many of them changed nothing, since the loss or its gradient was not finite.
        seconds: how long it took.
    """

    method: Method[Any]
    best_step: int
    best_validation: float
    meta_steps: int
    skipped: int
    seconds: float

    @property
    def failure(self) -> str | None:
        """What went wrong, if nothing was learned."""
        reasons = []
        if not math.isfinite(self.best_validation):
            reasons.append(
                "validation was never finite, so these are the last parameters and not the best"
            )
        if self.skipped == self.meta_steps:
            reasons.append(
                f"all {self.skipped} meta-steps were skipped, since losses or gradients were not finite"
            )
        if self.best_step == 0 and not reasons:
            reasons.append(
                "no meta-step made it better on held-out problems (best_step is 0), so it is as it was"
            )
        return (
            f"{type(self.method).__name__} was not learned: {'; '.join(reasons)}"
            if reasons
            else None
        )


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
    """Minimise Σ_k w_k f(x_k) + s · inconsistency over the parameters of a method: its map,
    schedules and oracle.

    Any method can be learned. The one given is changed in place and ends with the parameters that
    were best on held-out problems. With a ``folder``, the run is checkpointed there and logged as
    JSON lines; started again, a run that was interrupted continues from its last checkpoint, to the
    same result. Started by ``torchrun``, the problems of every batch are shared among the
    processes. Where nothing was learned, there is a warning (:class:`NothingLearned`).

    Args:
        family: where problems come from.
        method: the method to learn.
        settings: how to learn it.
        oracle: how gradients are computed; exactly by default. Its parameters are learned too.
        folder: where the run is kept; None keeps nothing on disk.
        resume: whether to continue the run in the folder, or to start afresh.
        progress: show a live display; by default on a terminal.
        callback: called with the number of every finished meta-step.
    """
    trainer = _Trainer(family, method, settings or Settings(), oracle, folder)
    show = progress if trainer.rank == 0 else False
    with trainer.held(), ProgressBar("learning", trainer.settings.meta_steps, show) as bar:
        trainer.begin(resume)
        learned = trainer.run(bar, callback)
    if trainer.rank == 0:
        if learned.failure is not None:
            warnings.warn(learned.failure, NothingLearned, stacklevel=2)
        elif (words := trainer.at_bounds()) is not None:
            warnings.warn(words, stacklevel=2)
    return learned


class _Trainer:
    def __init__(
        self,
        family: ProblemFamily,
        method: Method[Any],
        settings: Settings,
        oracle: Oracle | None,
        folder: str | Path | None,
    ) -> None:
        settings.objective.resolve_oracle(
            method, oracle
        )  # what cannot be honoured is said before anything is done
        self.family = family
        self.method = method
        self.oracle = oracle
        self.settings = settings
        self.module = nn.ModuleDict(
            {"method": method} | ({"oracle": oracle} if oracle is not None else {})
        )
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError(
                f"{type(method).__name__} has nothing to learn: no part of it has parameters"
            )
        _require_within(settings, self.module)
        self.rank, self.world = join()
        descent = settings.optimiser
        self.optimiser = torch.optim.Adam(
            self.parameters, lr=descent.learning_rate, betas=descent.betas
        )
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.validation = _referenced(family.validation(settings.validation.batch))
        _require_sound(method, self.validation.x0)
        self.progress = Progress(plain(settings))
        self.best = copy.deepcopy(self.module.state_dict())
        self.store = None if folder is None else RunFolder(folder)
        self.folder = self.store if self.rank == 0 else None

    def held(self) -> AbstractContextManager[None]:
        return nullcontext() if self.folder is None else self.folder.held()

    def begin(self, resume: bool) -> None:
        """Go on where a run in the folder stopped, if there is one and it is wanted."""
        if self.store is not None and resume and (saved := self.store.load(self.progress.settings)):
            self._restore(*saved, self.store)
        elif self.folder is not None:
            self.folder.lines.unlink(
                missing_ok=True
            )  # of a run that ended before its first checkpoint

    def _restore(
        self, progress: Progress, groups: dict[str, dict[str, Tensor]], store: RunFolder
    ) -> None:
        try:
            self.progress = progress
            self.best = groups["best"]
            for name in ("best", "module"):
                self.module.load_state_dict(groups[name])
            states: dict[int, dict[str, Tensor]] = {}
            for key, tensor in groups.get("optimiser", {}).items():
                index, _, name = key.partition(".")
                states.setdefault(int(index), {})[name] = tensor
            for place, state in states.items():
                _require_of_adam(state, self.parameters[place])
            self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": states})
            self.generator.set_state(groups["generator"]["state"])
        except (RuntimeError, LookupError, ValueError, TypeError) as error:
            raise RunDamaged(
                f"{store.path} cannot be resumed, it is another run: {error}"
            ) from error

    def run(self, bar: ProgressBar, callback: Callable[[int], object] | None) -> Learned:
        began = perf_counter()
        state = self.progress
        if state.meta_step == 0:
            self._validate()  # what does not become better than it was is left as it was
        with (
            Interruption()
            if self.folder is not None
            else nullcontext(Interruption()) as interruption
        ):
            while state.meta_step < self.settings.meta_steps and not state.finished:
                self._next(bar)
                if callback is not None:
                    callback(state.meta_step)
                if (
                    interruption.requested is not None
                    and state.meta_step < self.settings.meta_steps
                ):
                    self._stop(interruption.requested)
        if math.isfinite(state.best_validation):  # otherwise the last parameters are all there is
            self.module.load_state_dict(self.best)
        seconds = perf_counter() - began
        return Learned(
            self.method,
            state.best_step,
            state.best_validation,
            state.meta_step,
            state.skipped,
            seconds,
        )

    def _next(self, bar: ProgressBar) -> None:
        """Take a meta-step, validate and save when it is time."""
        state = self.progress
        settings = self.settings
        loss = self._meta_step()
        state.meta_step += 1
        if (
            state.meta_step % settings.validation.every == 0
            or state.meta_step == settings.meta_steps
        ):
            self._validate()
        if (
            state.meta_step % settings.save_every == 0
            or state.meta_step == settings.meta_steps
            or state.finished
        ):
            self._save()
        bar.update(state.meta_step, f"loss {loss:.4g}, best validation {state.best_validation:.4g}")

    def _stop(self, signal: int) -> None:
        self._save()
        raise Interrupted(
            f"interrupted at meta-step {self.progress.meta_step} of {self.settings.meta_steps}, which is kept: started "
            "again in the same way, the run goes on from there",
            signal,
        )

    def _meta_step(self) -> float:
        settings = self.settings
        step = self.progress.meta_step
        # Every process draws the seeds of the whole batch and takes its share: the problems are
        # those of one process.
        seeds = draw_seeds(settings.batch, self.generator)
        draw = self.family.draw(share(seeds, self.rank, self.world))
        horizon = settings.horizon_at(step)
        self.optimiser.zero_grad()
        losses, values = settings.objective.losses(
            self.method, draw, horizon, step, self.oracle, self.generator
        )
        loss = losses.mean()
        torch.autograd.backward(loss)
        reported = loss.detach().clone()
        average(self.parameters, reported, world=self.world)
        clip = settings.optimiser.clip
        norm = nn.utils.clip_grad_norm_(self.parameters, torch.inf if clip is None else clip)
        if bool(norm.isfinite() & reported.isfinite()):
            for group in self.optimiser.param_groups:
                group["lr"] = settings.optimiser.learning_rate_at(step, settings.meta_steps)
            self.optimiser.step()
            self._bound_steps()
        else:
            self.progress.skipped += 1
        if self.folder is not None:
            value = float(values[-1].mean())
            self.folder.log(
                step, loss=float(reported), gradient_norm=float(norm), horizon=horizon, value=value
            )
        return float(reported)

    @torch.no_grad()
    def _bound_steps(self) -> None:
        if self.settings.step_bounds is not None:
            for part in self.module.modules():
                if isinstance(part, Prefix):
                    part.values.clamp_(*self.settings.step_bounds)

    @torch.no_grad()
    def at_bounds(self) -> str | None:
        """Say so if steps have ended at one of their bounds: without it they might have become
        better.
        """
        bounds = self.settings.step_bounds
        for part in self.module.modules():
            if (
                bounds is not None
                and isinstance(part, Prefix)
                and bool((part.values >= bounds[1]).any())
            ):
                return (
                    f"learned steps have reached {bounds[1]:g}, the upper of step_bounds, which may have kept them "
                    "from being better: Settings(step_bounds=None) lifts it"
                )
        return None

    def _validate(self) -> None:
        state = self.progress
        score = validation_score(self.method, self.validation, self.settings, self.oracle)
        if score < state.best_validation:
            state.best_validation = score
            state.best_step = state.meta_step
            self.best = copy.deepcopy(self.module.state_dict())
        elif self.settings.validation.patience is not None:
            waited = (state.meta_step - state.best_step) // self.settings.validation.every
            state.finished = waited >= self.settings.validation.patience
        if self.folder is not None:
            self.folder.log(
                state.meta_step, validation=score, best_validation=state.best_validation
            )

    def _save(self) -> None:
        if self.folder is not None:
            states = self.optimiser.state_dict()["state"].items()
            self.folder.save(
                self.progress,
                module=self.module.state_dict(),
                best=self.best,
                optimiser={
                    f"{i}.{name}": torch.as_tensor(v)
                    for i, state in states
                    for name, v in state.items()
                },
                generator={"state": self.generator.get_state()},
            )


@torch.no_grad()
def _require_within(settings: Settings, module: nn.Module) -> None:
    """Raise if steps begin outside their bounds: they would be moved there, and nobody
    would know.
    """
    if settings.step_bounds is None:
        return
    low, high = settings.step_bounds
    for part in module.modules():
        if isinstance(part, Prefix) and not bool(
            ((part.values >= low) & (part.values <= high)).all()
        ):
            raise ValueError(
                f"steps begin from {float(part.values.min()):.3g} to {float(part.values.max()):.3g}, but step_bounds "
                f"keeps them between {low:g} and {high:g}: give Settings(step_bounds=…) that contain them, or None"
            )


def _require_sound(method: Method[Any], x0: Tree) -> None:
    """Raise if a map that acts on points is not what it says; one that is learned all the same ends
    anywhere.
    """
    while isinstance(method, Wrapper):
        method = method.method
    if method.mirror is not None and not (
        isinstance(method, GradientMethod) and not method.maps_points
    ):
        require_inverse(method.mirror, x0)


def _require_of_adam(state: dict[str, Tensor], parameter: Tensor) -> None:
    """Raise unless these are what Adam keeps of a parameter."""
    shapes = {"step": torch.Size(), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}
    if {name: tensor.shape for name, tensor in state.items()} != shapes:
        raise ValueError("its optimiser has other parameters")


def _referenced(draw: Draw) -> Draw:
    """Return a draw with lower bounds, so that scores do not depend on where 0 is: its own, or what
    else is known.
    """
    if draw.lower is not None or draw.problem.never_below is not None:
        return draw
    return replace(draw, lower=reference_of(draw)[0])


@torch.no_grad()
def validation_score(
    method: Method[Any], draw: Draw, settings: Settings, oracle: Oracle | None = None
) -> float:
    """Return the mean over held-out problems of (f(x_k) − lower) / (f(x₀) − lower), its geometric
    mean over horizons.

    Or the geometric mean over both, if the settings say so. Without lower bounds, lower is what f
    is known never to be below, or 0. A run that fails counts as infinity.
    """
    horizons = sorted(
        {max(1, round(share * settings.horizon)) for share in settings.validation.horizons}
    )
    random = torch.Generator().manual_seed(settings.seed)
    last = horizons[-1]
    solution = solve(
        draw.problem,
        method,
        draw.x0,
        iterations=last,
        oracle=oracle,
        generator=random,
        trace=horizons,
        progress=False,
    )
    if not solution.ok:
        return float("inf")
    trivial = torch.full_like(solution.value, draw.problem.never_below or 0.0)
    lower = trivial if draw.lower is None else draw.lower
    # Relative to x₀ as it was given: where a map has learned its own start, the first iterate is
    # another.
    gaps = (solution.trace.values - lower) / (draw.problem.value(draw.x0) - lower)
    gaps = gaps if settings.validation.geometric else gaps.mean(1)
    return float(
        gaps.clamp(min=settings.objective.floor or torch.finfo(gaps.dtype).tiny).log().mean().exp()
    )
