"""Recipes: the whole way from data to a zoo entry with its card."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor, nn

from mirrordescent import zoo
from mirrordescent.learn.control import without_map
from mirrordescent.learn.distributed import join
from mirrordescent.learn.families import Draw, OnDevice, ProblemFamily
from mirrordescent.learn.objective import Inconsistent
from mirrordescent.learn.settings import Settings
from mirrordescent.learn.tables import apply, changed, plain
from mirrordescent.learn.trainer import learn
from mirrordescent.mirrors import MirrorMap
from mirrordescent.oracles import Oracle
from mirrordescent.parts import describe
from mirrordescent.schedules import Prefix
from mirrordescent.solving.loop import solve
from mirrordescent.zoo import Card

NAME = re.compile(r"\w[\w .+=-]{0,99}")
"""Pattern of names of entries, which become names of files and folders."""
REPORTED = (1, 5, 10, 20, 50, 100)
"""Iterations at which an entry is evaluated."""
CONTROL = "-control"
"""Suffix of the name of a control."""
Numbers: TypeAlias = dict[str, Any]


class Stage(ABC):
    """A stage of learning. A subclass implements :meth:`run` and has a name.

    The name is also that of the stage's folder.
    """

    name: str
    seed: int = 0
    """Seed for the initial module, if this is the first stage."""

    @abstractmethod
    def run(self, module: Any, family: ProblemFamily, **work: Any) -> tuple[nn.Module, Numbers]:
        """Learn, or continue an interrupted run; return the learned module and a record.

        The record becomes a part of the card. Its entry ``use`` has numbers that are necessary to
        use the entry, such as the size of a minibatch.

        Args:
            module: Module to learn.
            family: Family of problems.
            work: Arguments ``folder``, ``oracle``, ``resume`` and ``progress`` of
                :func:`~mirrordescent.learn.trainer.learn`.
        """

    def changed(self, settings: Mapping[str, Any]) -> Stage:
        """Return the stage with some settings changed. A stage without settings stays as it is."""
        return self


class Unrolled(Stage):
    """Learning by unrolling, see :func:`~mirrordescent.learn.trainer.learn`.

    Args:
        settings: Settings for learning.
        prepare: Function that returns the method to learn. It may freeze a part of the given
            method, or return another method.
        name: Name of the stage.
    """

    def __init__(
        self,
        settings: Settings,
        prepare: Callable[[Any], Any] | None = None,
        name: str = "unrolled",
    ) -> None:
        self.settings = settings
        self.prepare = prepare
        self.name = name
        self.seed = settings.seed

    def run(self, module: Any, family: ProblemFamily, **work: Any) -> tuple[nn.Module, Numbers]:
        method = module if self.prepare is None else self.prepare(module)
        result = learn(family, method, self.settings, **work)
        score = result.best_validation if math.isfinite(result.best_validation) else None
        record: Numbers = {
            "stage": self.name,
            "settings": plain(self.settings),
            "best_meta_step": result.best_step,
            "best_validation": score,
            "skipped": result.skipped,
        }
        if result.failure is not None:
            record["failure"] = result.failure
        return method, record

    def changed(self, settings: Mapping[str, Any]) -> Unrolled:
        return type(self)(changed(self.settings, settings, "settings"), self.prepare, self.name)


@torch.no_grad()
def along_a_run(method: Any, draw: Draw, use: Numbers) -> Numbers:
    """Evaluate a method on held-out problems.

    Returns the mean gap f(x_k) − lower along a run, or f(x_k)/f(x₀) without lower bounds, and the
    inconsistency of a learned pair.
    """
    start = draw.problem.value(draw.x0)
    solution = solve(
        draw.problem,
        method,
        draw.x0,
        iterations=max(REPORTED),
        generator=torch.Generator().manual_seed(0),
        trace=REPORTED,
        progress=False,
    )

    def mean(values: Tensor) -> float:
        if draw.lower is None:
            return float((values / start).mean())
        return float((values.double() - draw.lower).mean())

    measure = "relative value" if draw.lower is None else "gap"
    means = {"start": mean(start)}
    for k in REPORTED:
        means[str(k)] = mean(solution.trace.at(k))
    results: Numbers = {
        "problems": len(start),
        measure: means,
        "statuses": [str(status) for status in solution.statuses],
    }
    if isinstance(method.mirror, Inconsistent):
        size = torch.as_tensor(draw.x0).flatten(1).abs().sum(1)
        relative = method.mirror.inconsistency(draw.x0) / size
        results["relative_inconsistency"] = float(relative.mean())
    return results


@dataclass(frozen=True)
class Recipe:
    """The purpose of a zoo entry, and how it is learned.

    Args:
        name: Name of the entry.
        description: Purpose of the entry, in one sentence.
        family: Function of the data directory that returns the family of problems.
        method: Function of a random generator and the family that returns the module to learn,
            such as a method.
        stages: Stages of learning, in order.
        on: Description of the family.
        data: Description of the source of the data.
        oracle: Oracle that computes the gradients while learning. The default is the oracle of the
            method, or exact gradients.
        use: Numbers that are necessary to use the entry. Stages may add to them.
        evaluate: Function of the module, held-out problems and ``use`` that returns results for the
            card, or None.
        problems: Number of held-out problems.
    """

    name: str
    description: str
    family: Callable[[Path | None], ProblemFamily]
    method: Callable[[Generator, ProblemFamily], nn.Module]
    stages: Sequence[Stage]
    on: str = ""
    data: str = "generated"
    oracle: Oracle | None = None
    use: Numbers = field(default_factory=dict)
    evaluate: Callable[[Any, Draw, Numbers], Numbers] | None = along_a_run
    problems: int = 8

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(
                "a name must consist of letters, digits, spaces and any of . + = - _, "
                f"and must not be a path; got {self.name!r}"
            )
        names = [stage.name for stage in self.stages]
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"{self.name} needs one or more stages with different names, got {names}"
            )

    def control(self) -> Recipe:
        """Return the recipe of the control, which has the identity instead of the mirror map.

        Stages, budgets, seeds, family, oracle and validation are the same. The control shows what
        schedules, momentum and so on achieve without a learned geometry.
        """

        def make(generator: Generator, family: ProblemFamily) -> nn.Module:
            method = self.method(generator, family)
            if not any(isinstance(part, MirrorMap) for part in method.modules()):
                raise TypeError(f"{self.name} has no mirror map, and therefore no control")
            return without_map(method)

        description = (
            f"the control of {self.name}: the same method with the identity for its map, "
            "learned alike"
        )
        return replace(self, name=f"{self.name}{CONTROL}", description=description, method=make)

    def train(
        self,
        runs: str | Path,
        out: str | Path,
        directory: Path | None = None,
        *,
        changes: Sequence[str] = (),
        resume: bool = True,
        device: str = "cpu",
        progress: bool | None = None,
    ) -> Path:
        """Learn the entry, write it with its card, and return the file.

        Args:
            runs: Folder for checkpoints and logs, which are in RUNS/NAME/STAGE.
            out: Folder for the entry.
            directory: Folder with the data sets.
            changes: Changes ``key=value`` of the settings of all stages.
            resume: Whether to continue an interrupted run. Otherwise a new run starts.
            device: Device on which to learn, such as ``"cuda"``.
            progress: Whether to show a progress bar. By default it is shown on a terminal.
        """
        settings = apply(changes, {})
        settings |= settings.pop("settings", {})
        stages = [stage.changed(settings) for stage in self.stages]
        family = self.family(directory)
        if device != "cpu":
            family = OnDevice(family, device)
        module: Any = self.method(torch.Generator().manual_seed(stages[0].seed), family).to(device)
        describe(module)  # raises now if the module cannot be stored
        Path(out).mkdir(parents=True, exist_ok=True)
        records = []
        use = dict(self.use)
        for stage in stages:
            folder = Path(runs) / self.name / stage.name
            module, record = stage.run(
                module, family, folder=folder, oracle=self.oracle, resume=resume, progress=progress
            )
            use |= record.pop("use", {})
            records.append(record)
        steps = getattr(module, "t", None)
        if isinstance(steps, Prefix):
            use["step_sizes"] = [round(size, 5) for size in steps.values.tolist()]
        results: Numbers = {}
        if self.evaluate is not None:
            results = self.evaluate(module, family.validation(self.problems), use)
        card = Card(
            self.name,
            self.description,
            family=self.on,
            data=self.data,
            stages=records,
            parameters=_learned_numbers(module),
            held_out=results,
            use=use,
        )
        path = Path(out) / f"{self.name}.safetensors"
        rank, _ = join()
        return zoo.save(module, path, card) if rank == 0 else path


def _learned_numbers(module: nn.Module) -> int:
    """Return the number of parameters; of buffers, for a module such as a prior without any."""
    parameters = sum(each.numel() for each in module.parameters())
    return parameters or sum(each.numel() for each in module.buffers())
