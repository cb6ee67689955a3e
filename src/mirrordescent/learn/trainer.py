"""Learning a method by unrolling it on the problems of a family."""

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
from mirrordescent.learn.distributed import average_gradients, join, local_share
from mirrordescent.learn.families import Draw, ProblemFamily, draw_seeds, lower_bounds
from mirrordescent.learn.settings import Settings
from mirrordescent.learn.tables import plain
from mirrordescent.methods.base import GradientMethod, Method, Wrapper
from mirrordescent.mirrors.inverse_check import require_inverse
from mirrordescent.oracles import Oracle
from mirrordescent.schedules import Prefix
from mirrordescent.solving.loop import solve
from mirrordescent.trees import Tree


class NothingLearned(UserWarning):
    """A method is no better after learning than before, or the scores are not finite."""


@dataclass(frozen=True)
class LearnResult:
    """The method with its best parameters, and a summary of the run.

    Args:
        method: Method that was passed to :func:`learn`.
        best_step: Number of meta-steps after which the validation score was best. 0 stands for the
            parameters before the first meta-step.
        best_validation: Best validation score, see :func:`validation_score`.
        meta_steps: Number of meta-steps.
        skipped: Number of meta-steps without an update, because the loss or its gradient was not
            finite.
        seconds: Duration in seconds.
    """

    method: Method[Any]
    best_step: int
    best_validation: float
    meta_steps: int
    skipped: int
    seconds: float

    @property
    def failure(self) -> str | None:
        """The reason why nothing was learned, or None."""
        reasons = []
        if not math.isfinite(self.best_validation):
            reasons.append(
                "no validation score was finite, so that the parameters are the last, not the best"
            )
        if self.skipped == self.meta_steps:
            reasons.append(
                f"all {self.skipped} meta-steps were skipped, because losses or gradients were not "
                "finite"
            )
        if self.best_step == 0 and not reasons:
            reasons.append(
                "no meta-step improved the score on held-out problems (best_step is 0), so that "
                "the parameters are unchanged"
            )
        if not reasons:
            return None
        return f"{type(self.method).__name__} was not learned: {'; '.join(reasons)}"


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
) -> LearnResult:
    """Minimise Σ_k w_k f(x_k) + s · inconsistency over the parameters of a method.

    Any method can be learned: its mirror map, its schedules, and the oracle. The method is changed
    in place and ends with the parameters that were best on held-out problems. If nothing was
    learned, a :class:`NothingLearned` warning is issued.

    With a ``folder``, the run is checkpointed and logged as JSON lines. An interrupted run that is
    started again continues from its last checkpoint, to the same result. Under ``torchrun``, the
    problems of every batch are shared among the processes.

    Args:
        family: Family of problems.
        method: Method to learn.
        settings: Settings of the run.
        oracle: Oracle that computes the gradients; by default they are exact. Its parameters are
            learned, too.
        folder: Folder for checkpoints and the log, or None.
        resume: Whether to continue the run in the folder. Otherwise a new run starts.
        progress: Whether to show a progress bar. By default it is shown on a terminal.
        callback: Function that is called with the number of every finished meta-step.
    """
    trainer = _Trainer(family, method, settings or Settings(), oracle, folder)
    show = progress if trainer.rank == 0 else False
    with trainer.lock(), ProgressBar("learning", trainer.settings.meta_steps, show) as bar:
        trainer.begin(resume)
        result = trainer.run(bar, callback)
    if trainer.rank == 0:
        if result.failure is not None:
            warnings.warn(result.failure, NothingLearned, stacklevel=2)
        elif (message := trainer.bound_warning()) is not None:
            warnings.warn(message, stacklevel=2)
    return result


class _Trainer:
    """A run of :func:`learn`."""

    def __init__(
        self,
        family: ProblemFamily,
        method: Method[Any],
        settings: Settings,
        oracle: Oracle | None,
        folder: str | Path | None,
    ) -> None:
        settings.objective.resolve_oracle(method, oracle)  # raises before any work is done
        self.family = family
        self.method = method
        self.oracle = oracle
        self.settings = settings
        self.module = nn.ModuleDict({"method": method})
        if oracle is not None:
            self.module["oracle"] = oracle
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError(
                f"{type(method).__name__} has no parameters to learn: "
                "give it a learned map or schedule"
            )
        _require_within_bounds(settings, self.module)
        self.rank, self.world = join()
        adam = settings.optimiser
        self.optimiser = torch.optim.Adam(self.parameters, lr=adam.learning_rate, betas=adam.betas)
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.validation = _with_lower_bounds(family.validation(settings.validation.batch))
        _require_mirror_map(method, self.validation.x0)
        self.progress = Progress(plain(settings))
        self.best = copy.deepcopy(self.module.state_dict())
        self.shared_folder = None if folder is None else RunFolder(folder)
        # Only the first process writes.
        self.folder = self.shared_folder if self.rank == 0 else None

    def lock(self) -> AbstractContextManager[None]:
        """Exclude other processes from the run folder."""
        return nullcontext() if self.folder is None else self.folder.lock()

    def begin(self, resume: bool) -> None:
        """Load the last checkpoint, if there is one and the run is to be resumed."""
        if self.shared_folder is not None and resume:
            saved = self.shared_folder.load(self.progress.settings)
            if saved is not None:
                self._restore(*saved, self.shared_folder)
                return
        if self.folder is not None:
            # Remove the log of a run that ended before its first checkpoint.
            self.folder.log_file.unlink(missing_ok=True)

    def _restore(
        self, progress: Progress, groups: dict[str, dict[str, Tensor]], folder: RunFolder
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
            for index_, state in states.items():
                _require_adam_state(state, self.parameters[index_])
            self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": states})
            self.generator.set_state(groups["generator"]["state"])
        except (RuntimeError, LookupError, ValueError, TypeError) as error:
            raise RunDamaged(
                f"{folder.path} cannot be resumed, because it holds another run: {error}"
            ) from error

    def run(self, bar: ProgressBar, callback: Callable[[int], object] | None) -> LearnResult:
        """Take all meta-steps and load the best parameters."""
        began = perf_counter()
        state = self.progress
        if state.meta_step == 0:
            self._validate()  # the initial parameters are kept unless a meta-step improves them
        with self._delay_signals() as interruption:
            while state.meta_step < self.settings.meta_steps and not state.finished:
                self._advance(bar)
                if callback is not None:
                    callback(state.meta_step)
                if interruption.requested is not None:
                    self._stop(interruption.requested)
        if math.isfinite(state.best_validation):
            self.module.load_state_dict(self.best)
        seconds = perf_counter() - began
        return LearnResult(
            self.method,
            state.best_step,
            state.best_validation,
            state.meta_step,
            state.skipped,
            seconds,
        )

    def _delay_signals(self) -> AbstractContextManager[Interruption]:
        """Let a meta-step finish before the run is interrupted, if it can be saved."""
        interruption = Interruption()
        return nullcontext(interruption) if self.folder is None else interruption

    def _advance(self, bar: ProgressBar) -> None:
        """Take a meta-step; validate and save if they are due."""
        state = self.progress
        settings = self.settings
        loss = self._meta_step()
        state.meta_step += 1
        last = state.meta_step == settings.meta_steps
        if last or state.meta_step % settings.validation.every == 0:
            self._validate()
        if last or state.finished or state.meta_step % settings.save_every == 0:
            self._save()
        bar.update(state.meta_step, f"loss {loss:.4g}, best validation {state.best_validation:.4g}")

    def _stop(self, signal: int) -> None:
        """Save the run and raise, unless this was the last meta-step."""
        if self.progress.meta_step >= self.settings.meta_steps:
            return
        self._save()
        raise Interrupted(
            f"interrupted at meta-step {self.progress.meta_step} of {self.settings.meta_steps}. "
            "The run is saved; start it again with the same arguments to continue",
            signal,
        )

    def _meta_step(self) -> float:
        """Update the parameters on a batch of problems and return the loss."""
        settings = self.settings
        step = self.progress.meta_step
        # Every process draws the seeds of the whole batch and takes its share. Hence the problems
        # do not depend on the number of processes.
        seeds = draw_seeds(settings.batch, self.generator)
        draw = self.family.draw(local_share(seeds, self.rank, self.world))
        horizon = settings.horizon_at(step)
        self.optimiser.zero_grad()
        losses, values = settings.objective.losses(
            self.method, draw, horizon, step, self.oracle, self.generator
        )
        mean_loss = losses.mean()
        torch.autograd.backward(mean_loss)
        loss = mean_loss.detach().clone()
        average_gradients(self.parameters, loss, world=self.world)
        clip = settings.optimiser.clip
        norm = nn.utils.clip_grad_norm_(self.parameters, torch.inf if clip is None else clip)
        if bool(norm.isfinite() & loss.isfinite()):
            for group in self.optimiser.param_groups:
                group["lr"] = settings.optimiser.learning_rate_at(step, settings.meta_steps)
            self.optimiser.step()
            self._clamp_steps()
        else:
            self.progress.skipped += 1
        if self.folder is not None:
            value = float(values[-1].mean())
            self.folder.log(
                step, loss=float(loss), gradient_norm=float(norm), horizon=horizon, value=value
            )
        return float(loss)

    @torch.no_grad()
    def _clamp_steps(self) -> None:
        """Move step sizes into their bounds."""
        if self.settings.step_bounds is None:
            return
        for part in self.module.modules():
            if isinstance(part, Prefix):
                part.values.clamp_(*self.settings.step_bounds)

    @torch.no_grad()
    def bound_warning(self) -> str | None:
        """Return a warning if a step size has reached its upper bound, which may be too low."""
        if self.settings.step_bounds is None:
            return None
        upper = self.settings.step_bounds[1]
        for part in self.module.modules():
            if isinstance(part, Prefix) and bool((part.values >= upper).any()):
                return (
                    f"learned steps have reached {upper:g}, the upper bound of step_bounds. Larger "
                    "steps may be better: Settings(step_bounds=None) removes the bounds"
                )
        return None

    def _validate(self) -> None:
        """Compute the validation score, and keep the parameters if it is the best so far."""
        state = self.progress
        validation = self.settings.validation
        score = validation_score(self.method, self.validation, self.settings, self.oracle)
        if score < state.best_validation:
            state.best_validation = score
            state.best_step = state.meta_step
            self.best = copy.deepcopy(self.module.state_dict())
        elif validation.patience is not None:
            without_progress = (state.meta_step - state.best_step) // validation.every
            state.finished = without_progress >= validation.patience
        if self.folder is not None:
            self.folder.log(
                state.meta_step, validation=score, best_validation=state.best_validation
            )

    def _save(self) -> None:
        if self.folder is None:
            return
        adam: dict[str, Tensor] = {}
        for index, state in self.optimiser.state_dict()["state"].items():
            for name, value in state.items():
                adam[f"{index}.{name}"] = torch.as_tensor(value)
        self.folder.save(
            self.progress,
            module=self.module.state_dict(),
            best=self.best,
            optimiser=adam,
            generator={"state": self.generator.get_state()},
        )


@torch.no_grad()
def _require_within_bounds(settings: Settings, module: nn.Module) -> None:
    """Raise if initial step sizes are outside their bounds, instead of moving them silently."""
    if settings.step_bounds is None:
        return
    low, high = settings.step_bounds
    for part in module.modules():
        if not isinstance(part, Prefix):
            continue
        if not bool(((part.values >= low) & (part.values <= high)).all()):
            smallest = float(part.values.min())
            largest = float(part.values.max())
            raise ValueError(
                f"initial steps must be within step_bounds, between {low:g} and {high:g}; they are "
                f"between {smallest:.3g} and {largest:.3g}. Give Settings(step_bounds=…) that "
                "contain them, or None"
            )


def _require_mirror_map(method: Method[Any], x0: Tree) -> None:
    """Raise if a method maps points by a map that contradicts its inverse or its potential."""
    while isinstance(method, Wrapper):
        method = method.method
    if method.mirror is None:
        return
    if isinstance(method, GradientMethod) and not method.maps_points:
        return
    require_inverse(method.mirror, x0)


def _require_adam_state(state: dict[str, Tensor], parameter: Tensor) -> None:
    """Raise unless a state has the shapes of Adam's state of a parameter."""
    expected = {"step": torch.Size(), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}
    if {name: tensor.shape for name, tensor in state.items()} != expected:
        raise ValueError("its optimiser has other parameters")


def _with_lower_bounds(draw: Draw) -> Draw:
    """Return a draw with lower bounds, so that scores do not depend on an offset of f."""
    if draw.lower is not None or draw.problem.never_below is not None:
        return draw
    return replace(draw, lower=lower_bounds(draw)[0])


@torch.no_grad()
def validation_score(
    method: Method[Any], draw: Draw, settings: Settings, oracle: Oracle | None = None
) -> float:
    """Return the mean relative gap (f(x_k) − lower) / (f(x₀) − lower) on held-out problems.

    The mean over the horizons is geometric. The mean over the problems is arithmetic, or geometric
    with ``Validation(geometric=True)``. Without lower bounds, ``lower`` is a known bound of f, or
    0. If a run fails, the score is infinite.
    """
    shares = settings.validation.horizons
    horizons = sorted({max(1, round(share * settings.horizon)) for share in shares})
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
    lower = draw.lower
    if lower is None:
        lower = torch.full_like(solution.value, draw.problem.never_below or 0.0)
    # Relative to the given x₀. A map with a learned start has another first iterate.
    gaps = (solution.trace.values - lower) / (draw.problem.value(draw.x0) - lower)
    if not settings.validation.geometric:
        gaps = gaps.mean(1)
    smallest = settings.objective.floor or torch.finfo(gaps.dtype).tiny
    return float(gaps.clamp(min=smallest).log().mean().exp())
