"""Many photographs: what to read, what is missing in each, where to write, in batches of
one shape.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mirrordescent._internal.files import Damaged, sealed, unsealed
from mirrordescent._internal.progress import ProgressBar
from mirrordescent.problems.tv import TVDenoising, TVInpainting
from mirrordescent.restore.deep_holes import smooth_holes
from mirrordescent.restore.masks import Masks, same_size
from mirrordescent.restore.outcome import Failure, Job, Outcome, outcome_of
from mirrordescent.restore.photo import read_photo, shape_of
from mirrordescent.restore.pipeline import restore
from mirrordescent.restore.planning import Plan, Task
from mirrordescent.restore.sources import Source, beside, sources
from mirrordescent.restore.weight import Choice, choose_weight

BATCH_PIXELS = 1 << 18  # larger batches are no faster per image
SHOWN = 12  # photographs whose pictures are kept to be looked at
RECORDS = "restored.jsonl"  # what has been done, in the folder that is written to
BAD = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    MemoryError,
)  # what may be wrong with one photograph

Say = Callable[[str], object]


@dataclass(frozen=True)
class Wanted:
    """What is to be done with every photograph.

    Args:
        task: "denoise" or "inpaint".
        out: the folder to write to.
        weight: λ; None to choose it for every photograph.
        keep_known: whether known pixels stay as they are when others are filled in; None: if there
            is hardly any noise.
        masks: which pixels are missing.
        truth: the undamaged photograph, or a folder of them with the same names.
        variant: keywords of :class:`~mirrordescent.problems.TVInpainting`, such as
            ``isotropic=True``.
    """

    task: Task
    out: Path
    weight: float | None = None
    keep_known: bool | None = None
    masks: Masks = field(default_factory=Masks)
    truth: Path | None = None
    variant: dict[str, Any] = field(default_factory=dict)


class Jobs:
    """Photographs to restore. One that cannot be restored costs only itself.

    Args:
        wanted: what is to be done.
        images: files and folders.
        resume: leave out what an earlier run has done in the same way.
        say: is told what is assumed, and what looks wrong.
    """

    def __init__(
        self,
        wanted: Wanted,
        images: Sequence[Path],
        resume: bool = False,
        say: Say = lambda line: None,
    ) -> None:
        self.wanted = wanted
        self.say = say
        self.sources = list(sources(images))
        if not self.sources:
            raise ValueError("give at least one image")
        self._require_outputs_apart()
        self.records = wanted.out / RECORDS
        self.done = self._done_before() if resume else {}
        self.ready: dict[Source, Job] = {}
        self.shown = 0
        if (
            len(self.sources) == 1 and not self.done
        ):  # a mistake shows at once, and nothing is written
            self.ready[self.sources[0]] = self._job(self.sources[0])

    def run(self, plan: Plan, progress: bool | None = None) -> Iterator[Outcome | Failure]:
        """Restore batch by batch, and write every photograph as soon as it is done."""
        count = 0
        several = len(self.sources) > 1
        if not self.done:
            self.records.unlink(missing_ok=True)
        with ProgressBar("photographs", len(self.sources), progress if several else False) as bar:
            for batch in self._batches():
                for outcome in self._restored(batch, plan, None if several else progress):
                    count += 1
                    yield outcome
                    bar.update(
                        count,
                        _time_left(bar.began, count - len(self.done), len(self.sources) - count),
                    )

    def _restored(
        self, batch: list[Source], plan: Plan, progress: bool | None
    ) -> Iterator[Outcome | Failure]:
        began = perf_counter()
        jobs = []
        for source in batch:
            if str(source.path) in self.done:
                yield Outcome(source.name.as_posix(), self.done[str(source.path)])
                continue
            try:
                jobs.append(self.ready.pop(source) if source in self.ready else self._job(source))
            except BAD as error:
                if len(self.sources) == 1:
                    raise
                yield Failure(source.name.as_posix(), _said(error))
        for same in _by_shape(jobs):
            try:
                yield from self._together(same, plan, progress, began)
            except BAD as error:
                if len(self.sources) == 1:
                    raise
                if len(same) == 1:
                    yield Failure(same[0].name, _said(error))
                    continue
                for job in same:  # one of them is to blame
                    yield from self._restored(
                        [Source(job.photo.path, Path(job.name))], plan, progress
                    )
            began = perf_counter()

    def _together(
        self, jobs: list[Job], plan: Plan, progress: bool | None, began: float
    ) -> Iterator[Outcome]:
        """Restore photographs of one shape."""
        wanted = self.wanted
        problem = self._problem(jobs, wanted.weight or 1.0)
        choices: list[Choice | None] = [None] * len(jobs)
        if wanted.weight is None:
            choices = list(
                choose_weight(problem, halved=[job.photo.halved for job in jobs], fused=plan.fused)
            )
        left = [
            wanted.task == "denoise" and choice is not None and choice.clean for choice in choices
        ]
        solved = [i for i, alone in enumerate(left) if not alone]
        found = None
        if solved:
            if wanted.weight is None or len(solved) < len(jobs):
                weights = [c.weight for i, c in enumerate(choices) if i in solved and c is not None]
                weight = torch.tensor(weights) if wanted.weight is None else wanted.weight
                problem = self._problem([jobs[i] for i in solved], weight)
            found = restore(problem, plan, progress=progress, announce=self.say)
        del problem
        seconds = (perf_counter() - began) / len(jobs)
        for index, (job, choice) in enumerate(zip(jobs, choices, strict=True)):
            kept = job.mask is not None and self._keeps(choice)
            if index not in solved:
                x = job.photo.colour
            else:
                assert found is not None
                x = found.x[solved.index(index)].float()
                x = _put_back(x, job) if kept else x.clamp_(0, 1)
            job.photo.write(job.output, x, job.alpha)
            used = wanted.weight if choice is None else choice.weight
            record = {
                "weight": 0.0 if index not in solved else used,
                "kept": kept,
                "seconds": seconds,
            }
            place = solved.index(index) if index in solved else 0
            outcome = outcome_of(
                job,
                x,
                found if index in solved else None,
                place,
                choice,
                record,
                self.shown < SHOWN,
            )
            self._remember(job, outcome)
            self.shown += 1
            yield outcome

    def _keeps(self, choice: Choice | None) -> bool:
        if self.wanted.keep_known is not None:
            return self.wanted.keep_known
        return choice is not None and choice.clean

    def _batches(self) -> Iterator[list[Source]]:
        """Yield photographs that may have one shape, as far as their headers tell, not too many at
        a time.
        """
        by_shape: dict[tuple[int, ...], list[Source]] = {}
        for source in self.sources:
            by_shape.setdefault(shape_of(source.path), []).append(source)
        for shape, alike in by_shape.items():
            count = max(1, BATCH_PIXELS // (shape[0] * shape[1])) if shape else 1
            yield from (alike[i : i + count] for i in range(0, len(alike), count))

    def _problem(self, jobs: list[Job], weight: float | Tensor) -> TVInpainting:
        images = [job.observed for job in jobs]
        observed = (
            torch.stack(images) if len(images) > 1 else images[0].unsqueeze(0)
        )  # a large one is not copied
        if self.wanted.task == "denoise":
            return TVDenoising(observed, weight, **self.wanted.variant)
        masks = [job.mask for job in jobs if job.mask is not None]
        return TVInpainting(
            observed, torch.stack(masks).unsqueeze(1), weight, **self.wanted.variant
        )

    def _job(self, source: Source) -> Job:
        wanted = self.wanted
        photo = read_photo(source.path)
        mask = None
        alpha = photo.alpha
        truth = None
        if wanted.task == "inpaint":
            known = wanted.masks.known(photo, source)
            mask = known.mask
            alpha = known.alpha
            self.say(f"{source.path}: {known.words}; {known.missing:.1%} missing")
            if known.question:
                self.say(known.question)
        if wanted.truth is not None:
            truth = same_size(beside(wanted.truth, source), photo).colour
            if len(truth) != len(photo.colour):
                raise ValueError(
                    f"{source.path} has {len(photo.colour)} channels, but its truth {len(truth)}"
                )
        elif wanted.masks.missing is not None:
            truth = photo.colour
        output = (wanted.out / source.name).with_suffix(photo.suffix)
        return Job(source.name.as_posix(), photo, output, mask, alpha, truth)

    def _require_outputs_apart(self) -> None:
        read = {source.path.resolve() for source in self.sources}
        for other in (self.wanted.masks.place, self.wanted.truth):
            if other is not None and not other.is_dir():
                read.add(other.resolve())
            elif other is not None:
                read |= {path.resolve() for path in other.rglob("*")}
        written: dict[Path, Path] = {}
        for source in self.sources:
            output = (self.wanted.out / source.name).resolve()
            if output in read:
                raise ValueError(
                    f"{output} would be overwritten: choose another folder to write to"
                )
            if output in written:
                raise ValueError(
                    f"{written[output]} and {source.path} would both be written to {output}"
                )
            written[output] = source.path

    def _remember(self, job: Job, outcome: Outcome) -> None:
        """Note what was done, so that another run may leave it out."""
        self.records.parent.mkdir(parents=True, exist_ok=True)
        entry = {"how": self._how(job.photo.path), "record": outcome.record}
        with self.records.open("a", encoding="utf-8") as file:
            file.write(sealed(entry) + "\n")

    def _done_before(self) -> dict[str, dict[str, Any]]:
        """Return the records of photographs that were restored as is wanted now, and whose files
        have not changed.
        """
        there = self.records.is_file()
        lines = (
            self.records.read_text(encoding="utf-8", errors="replace").splitlines() if there else []
        )
        asked = {str(source.path) for source in self.sources}
        done = {}
        for line in lines:
            try:
                entry = unsealed(line)
            except Damaged:  # half a line, of a run that was killed
                continue
            file = entry["record"]["file"]
            output = Path(entry["record"]["output"])
            if file in asked and output.is_file() and entry["how"] == self._how(Path(file)):
                done[file] = entry["record"]
        return done

    def _how(self, path: Path) -> str:
        """Describe what a result depends on: the settings, and the file by its size and time."""
        there = path.stat()
        return f"{self.wanted!r} {there.st_size} {there.st_mtime_ns}"


def _put_back(x: Tensor, job: Job) -> Tensor:
    """Return what is known as it is, and holes that meet it smoothly."""
    assert job.mask is not None
    mask = job.mask.expand_as(x)
    joined = torch.where(mask, job.photo.colour, x)
    return torch.where(
        mask, joined, smooth_holes(joined.unsqueeze(0), mask.unsqueeze(0))[0].clamp(0, 1)
    )


def _by_shape(jobs: Iterable[Job]) -> list[list[Job]]:
    groups: dict[tuple[int, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(tuple(job.photo.colour.shape), []).append(job)
    return list(groups.values())


def _time_left(began: float, done: int, left: int) -> str:
    """Say how long the rest will take.

    >>> _time_left(perf_counter() - 60, 2, 4)
    '2 min left'
    """
    if done < 1 or left < 1:
        return "done" if left < 1 else ""
    seconds = (perf_counter() - began) / done * left
    return f"{seconds:.0f} s left" if seconds < 90 else f"{seconds / 60:.0f} min left"


def _said(error: Exception) -> str:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return " ".join(text.split()) or type(error).__name__
