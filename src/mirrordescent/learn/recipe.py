"""Recipes: what is learned on what, and how, from the data to the entry of a zoo with its card."""

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

NAME = re.compile(r"\w[\w .+=-]{0,99}")  # it becomes that of files and folders
REPORTED = (1, 5, 10, 20, 50, 100)
CONTROL = "-control"  # what the name of a control ends with
Numbers: TypeAlias = dict[str, Any]


class Stage(ABC):
    """A stage of learning. To add one, write ``run`` and give it a name, which is also that of its
    folder.
    """

    name: str
    seed: int = 0
    """Determines the module that learning begins with, if this is the first stage."""

    @abstractmethod
    def run(self, module: Any, family: ProblemFamily, **work: Any) -> tuple[nn.Module, Numbers]:
        """Learn, or continue an interrupted run; return the learned module, and a record for the
        card.

        ``work`` has the folder, oracle, resume and progress of
        :func:`~mirrordescent.learn.trainer.learn`. Numbers that belong to the entry, such as a
        minibatch, are under ``use`` in the record.
        """

    def changed(self, settings: Mapping[str, Any]) -> Stage:
        """Return the stage with other settings, as far as it has any."""
        return self


class Unrolled(Stage):
    """Learning by unrolling, see :func:`~mirrordescent.learn.trainer.learn`.

    Args:
        settings: how to learn.
        prepare: changes the method first: it may freeze a part of it, or return another one.
        name: the name of the stage.
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
        found = learn(family, method, self.settings, **work)
        record: Numbers = {
            "stage": self.name,
            "settings": plain(self.settings),
            "best_meta_step": found.best_step,
            "best_validation": found.best_validation
            if math.isfinite(found.best_validation)
            else None,
            "skipped": found.skipped,
        }
        return method, record | ({} if found.failure is None else {"failure": found.failure})

    def changed(self, settings: Mapping[str, Any]) -> Unrolled:
        return type(self)(changed(self.settings, settings, "settings"), self.prepare, self.name)


@torch.no_grad()
def along_a_run(method: Any, draw: Draw, use: Numbers) -> Numbers:
    """Return the mean gap along a run, or f(x_k)/f(x₀) where no bounds are known, and the
    inconsistency of a pair.
    """
    start = draw.problem.value(draw.x0)
    random = torch.Generator().manual_seed(0)
    solution = solve(
        draw.problem,
        method,
        draw.x0,
        iterations=max(REPORTED),
        generator=random,
        trace=REPORTED,
        progress=False,
    )

    def mean(values: Tensor) -> float:
        return float(
            (values.double() - draw.lower).mean()
            if draw.lower is not None
            else (values / start).mean()
        )

    found: Numbers = {
        "problems": len(start),
        "gap" if draw.lower is not None else "relative value": {
            "start": mean(start),
            **{str(k): mean(solution.trace.at(k)) for k in REPORTED},
        },
        "statuses": [str(status) for status in solution.statuses],
    }
    if isinstance(method.mirror, Inconsistent):
        size = torch.as_tensor(draw.x0).flatten(1).abs().sum(1)
        found["relative_inconsistency"] = float(
            (method.mirror.inconsistency(draw.x0) / size).mean()
        )
    return found


@dataclass(frozen=True)
class Recipe:
    """What an entry of a zoo is for, and how it is learned.

    Args:
        name: the name of the entry.
        description: what it is for, in a sentence.
        family: makes the family it is learned on, given the data directory.
        method: makes the part to learn, such as a method, given a generator and the family.
        stages: the stages of learning, in order.
        on: what the family is, in words.
        data: where its data come from, in words.
        oracle: how gradients are computed while learning; by default by the method's own oracle, if
            any, else exactly.
        use: numbers that belong to the entry; stages may add to them.
        evaluate: measures the entry, given held-out problems and ``use``; None: it is not measured.
        problems: the number of held-out problems.
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
                f"a name has letters, digits, spaces, -, _ and dots inside, and is no path: {self.name!r}"
            )
        names = [stage.name for stage in self.stages]
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"{self.name} needs at least one stage, and stages of different names, got {names}"
            )

    def control(self) -> Recipe:
        """Return the recipe of the control: the same method with the identity for its map, and all
        else as it is.

        The same stages with their budgets and seeds, the same family, oracle and validation. What
        it reaches is what schedules, momentum and the rest reach without a learned geometry.
        """

        def make(generator: Generator, family: ProblemFamily) -> nn.Module:
            method = self.method(generator, family)
            if not any(isinstance(part, MirrorMap) for part in method.modules()):
                raise TypeError(f"{self.name} has no map, and so no control")
            return without_map(method)

        description = f"the control of {self.name}: the same method with the identity for its map, learned alike"
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
        """Learn the entry, or continue an interrupted run, and write it with its card; return the
        file.

        Args:
            runs: the folder for checkpoints and logs, which are in RUNS/NAME/STAGE.
            out: the folder to write to.
            directory: where the data are.
            changes: ``key=value``, for the settings of all stages.
            resume: whether to continue an interrupted run, or to start afresh.
            device: where to learn, such as cuda.
            progress: show a progress bar; by default on a terminal.
        """
        settings = apply(changes, {})
        settings |= settings.pop("settings", {})
        stages = [stage.changed(settings) for stage in self.stages]
        family = self.family(directory)
        if device != "cpu":
            family = OnDevice(family, device)
        module: Any = self.method(torch.Generator().manual_seed(stages[0].seed), family).to(device)
        describe(module)  # what cannot be stored is refused before it is learned
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
        evaluated = (
            {}
            if self.evaluate is None
            else self.evaluate(module, family.validation(self.problems), use)
        )
        card = Card(
            self.name,
            self.description,
            family=self.on,
            data=self.data,
            stages=records,
            parameters=sum(p.numel() for p in module.parameters()),
            held_out=evaluated,
            use=use,
        )
        path = Path(out) / f"{self.name}.safetensors"
        return zoo.save(module, path, card) if join()[0] == 0 else path
