"""Restoration of many photographs, in batches of one shape."""

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
from mirrordescent.restore.masks import Masks, read_same_size
from mirrordescent.restore.outcome import Failure, Outcome, PhotoJob, outcome_of
from mirrordescent.restore.photo import read_photo, shape_of
from mirrordescent.restore.pipeline import Restored, restore
from mirrordescent.restore.planning import RestorationPlan, Task
from mirrordescent.restore.sources import Source, companion_file, sources
from mirrordescent.restore.weight import WeightChoice, choose_weight

BATCH_PIXELS = 1 << 18  # larger batches are not faster per image
SHOWN = 12  # photographs whose pictures are kept for the page
RECORDS = "restored.jsonl"  # file of the records in the output folder
# Errors that are reported for one photograph, so that the others are still restored.
PHOTO_ERRORS = (OSError, ValueError, TypeError, LookupError, MemoryError)

Say = Callable[[str], object]


@dataclass(frozen=True)
class RestorationSettings:
    """Settings for the restoration of every photograph.

    Args:
        task: "denoise" or "inpaint".
        out: Output folder.
        weight: Weight λ, or None to choose it for every photograph.
        keep_known: Whether known pixels stay as they are in inpainting; None to keep them if there
            is hardly any noise.
        masks: How missing pixels are found.
        truth: The undamaged photograph, or a folder of them with the same names.
        variant: Keyword arguments of :class:`~mirrordescent.problems.TVInpainting`, such as
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
    """Photographs to restore. If one of several cannot be restored, the others still are.

    Args:
        settings: Settings for every photograph.
        images: Files and folders.
        resume: Whether to skip photographs that an earlier run has restored with the same settings.
        say: Function that is called with messages about assumptions and doubts.
    """

    def __init__(
        self,
        settings: RestorationSettings,
        images: Sequence[Path],
        resume: bool = False,
        say: Say = lambda line: None,
    ) -> None:
        self.settings = settings
        self.say = say
        self.sources = list(sources(images))
        if not self.sources:
            raise ValueError("give at least one image")
        self._require_separate_outputs()
        self.records = settings.out / RECORDS
        self.done = self._restored_before() if resume else {}
        self.loaded: dict[Source, PhotoJob] = {}
        self.shown = 0
        self.single = len(self.sources) == 1
        if self.single and not self.done:  # report a mistake before anything is written
            self.loaded[self.sources[0]] = self._load(self.sources[0])

    def run(
        self, plan: RestorationPlan, progress: bool | None = None
    ) -> Iterator[Outcome | Failure]:
        """Restore batch by batch. Every photograph is written as soon as it is restored.

        Args:
            plan: The method, and when it stops.
            progress: Whether to show a progress bar; by default on a terminal.
        """
        count = 0
        total = len(self.sources)
        if not self.done:
            self.records.unlink(missing_ok=True)
        with ProgressBar("photographs", total, False if self.single else progress) as bar:
            for batch in self._batches():
                for outcome in self._restore(batch, plan, progress if self.single else None):
                    count += 1
                    yield outcome
                    left = _time_left(bar.began, count - len(self.done), total - count)
                    bar.update(count, left)

    def _restore(
        self, batch: list[Source], plan: RestorationPlan, progress: bool | None
    ) -> Iterator[Outcome | Failure]:
        """Load photographs and restore those of one shape together."""
        began = perf_counter()
        jobs = []
        for source in batch:
            if str(source.path) in self.done:
                yield Outcome(source.name.as_posix(), self.done[str(source.path)])
                continue
            try:
                job = self.loaded.pop(source) if source in self.loaded else self._load(source)
                jobs.append(job)
            except PHOTO_ERRORS as error:
                if self.single:
                    raise
                yield Failure(source.name.as_posix(), _message(error))
        for same_shape in _by_shape(jobs):
            try:
                yield from self._restore_together(same_shape, plan, progress, began)
            except PHOTO_ERRORS as error:
                if self.single:
                    raise
                if len(same_shape) == 1:
                    yield Failure(same_shape[0].name, _message(error))
                    continue
                for job in same_shape:  # one of them caused the error
                    alone = Source(job.photo.path, Path(job.name))
                    yield from self._restore([alone], plan, progress)
            began = perf_counter()

    def _restore_together(
        self, jobs: list[PhotoJob], plan: RestorationPlan, progress: bool | None, began: float
    ) -> Iterator[Outcome]:
        """Restore and write photographs of one shape."""
        choices = self._choose_weights(jobs, plan)
        solved = [i for i, choice in enumerate(choices) if not self._is_left(choice)]
        restored = None
        if solved:
            problem = self._problem(
                [jobs[i] for i in solved], self._weight([choices[i] for i in solved])
            )
            restored = restore(problem, plan, progress=progress, announce=self.say)
            del problem
        seconds = (perf_counter() - began) / len(jobs)
        for i, (job, choice) in enumerate(zip(jobs, choices, strict=True)):
            if i in solved:
                outcome = self._write(job, choice, seconds, restored, solved.index(i))
            else:
                outcome = self._write(job, choice, seconds)
            self._record(job, outcome)
            self.shown += 1
            yield outcome

    def _choose_weights(
        self, jobs: list[PhotoJob], plan: RestorationPlan
    ) -> Sequence[WeightChoice | None]:
        if self.settings.weight is not None:
            return [None] * len(jobs)
        halved = [job.photo.halved for job in jobs]
        return choose_weight(self._problem(jobs, 1.0), halved=halved, fused=plan.fused)

    def _is_left(self, choice: WeightChoice | None) -> bool:
        """Return whether a photograph is left as it is, because it has no noise to remove."""
        return self.settings.task == "denoise" and choice is not None and choice.clean

    def _weight(self, choices: Sequence[WeightChoice | None]) -> float | Tensor:
        if self.settings.weight is not None:
            return self.settings.weight
        return torch.tensor([choice.weight for choice in choices if choice is not None])

    def _write(
        self,
        job: PhotoJob,
        choice: WeightChoice | None,
        seconds: float,
        restored: Restored | None = None,
        index: int = 0,
    ) -> Outcome:
        """Write a photograph, as it is if ``restored`` is None, and return the result for it."""
        kept = job.mask is not None and self._keeps_known(choice)
        x = job.photo.colour
        weight: float | None = 0.0
        if restored is not None:
            x = restored.x[index].float()
            x = _keep_known(x, job) if kept else x.clamp_(0, 1)
            weight = self.settings.weight if choice is None else choice.weight
        job.photo.write(job.output, x, job.alpha)
        record = {"weight": weight, "kept": kept, "seconds": seconds}
        return outcome_of(job, x, restored, index, choice, record, self.shown < SHOWN)

    def _keeps_known(self, choice: WeightChoice | None) -> bool:
        if self.settings.keep_known is not None:
            return self.settings.keep_known
        return choice is not None and choice.clean

    def _batches(self) -> Iterator[list[Source]]:
        """Yield photographs of one shape, according to their headers, not too many at a time."""
        by_shape: dict[tuple[int, ...], list[Source]] = {}
        for source in self.sources:
            by_shape.setdefault(shape_of(source.path), []).append(source)
        for shape, same_shape in by_shape.items():
            count = max(1, BATCH_PIXELS // (shape[0] * shape[1])) if shape else 1
            for i in range(0, len(same_shape), count):
                yield same_shape[i : i + count]

    def _problem(self, jobs: list[PhotoJob], weight: float | Tensor) -> TVInpainting:
        images = [job.observed for job in jobs]
        # A single image, which may be large, is not copied.
        observed = images[0].unsqueeze(0) if len(images) == 1 else torch.stack(images)
        if self.settings.task == "denoise":
            return TVDenoising(observed, weight, **self.settings.variant)
        masks = [job.mask for job in jobs if job.mask is not None]
        mask = torch.stack(masks).unsqueeze(1)
        return TVInpainting(observed, mask, weight, **self.settings.variant)

    def _load(self, source: Source) -> PhotoJob:
        """Read a photograph, its mask and its truth."""
        settings = self.settings
        photo = read_photo(source.path)
        mask = None
        alpha = photo.alpha
        truth = None
        if settings.task == "inpaint":
            known = settings.masks.known_pixels(photo, source)
            mask = known.mask
            alpha = known.alpha
            self.say(f"{source.path}: {known.words}; {known.missing:.1%} missing")
            if known.question:
                self.say(known.question)
        if settings.truth is not None:
            truth = read_same_size(companion_file(settings.truth, source), photo).colour
            if len(truth) != len(photo.colour):
                raise ValueError(
                    f"{source.path} has {len(photo.colour)} channels, but its truth {len(truth)}"
                )
        elif settings.masks.missing is not None:
            truth = photo.colour
        output = (settings.out / source.name).with_suffix(photo.suffix)
        return PhotoJob(source.name.as_posix(), photo, output, mask, alpha, truth)

    def _require_separate_outputs(self) -> None:
        """Raise an error if an output would overwrite an input or another output."""
        inputs = {source.path.resolve() for source in self.sources}
        for place in (self.settings.masks.place, self.settings.truth):
            if place is None:
                continue
            files = place.rglob("*") if place.is_dir() else [place]
            inputs |= {path.resolve() for path in files}
        outputs: dict[Path, Path] = {}
        for source in self.sources:
            output = (self.settings.out / source.name).resolve()
            if output in inputs:
                raise ValueError(f"{output} would be overwritten: choose another output folder")
            if output in outputs:
                raise ValueError(
                    f"{outputs[output]} and {source.path} would both be written to {output}: "
                    "restore them to different folders"
                )
            outputs[output] = source.path

    def _record(self, job: PhotoJob, outcome: Outcome) -> None:
        """Store a result, so that another run can skip the photograph."""
        self.records.parent.mkdir(parents=True, exist_ok=True)
        entry = {"how": self._fingerprint(job.photo.path), "record": outcome.record}
        with self.records.open("a", encoding="utf-8") as file:
            file.write(sealed(entry) + "\n")

    def _restored_before(self) -> dict[str, dict[str, Any]]:
        """Return the records of photographs restored with the same settings, if still valid."""
        if not self.records.is_file():
            return {}
        inputs = {str(source.path) for source in self.sources}
        done = {}
        for line in self.records.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = unsealed(line)
            except Damaged:  # an incomplete line of an interrupted run
                continue
            file = entry["record"]["file"]
            output = Path(entry["record"]["output"])
            if file not in inputs or not output.is_file():
                continue
            if entry["how"] == self._fingerprint(Path(file)):
                done[file] = entry["record"]
        return done

    def _fingerprint(self, path: Path) -> str:
        """Describe the settings, and a file by its size and time."""
        stat = path.stat()
        return f"{self.settings!r} {stat.st_size} {stat.st_mtime_ns}"


def _keep_known(x: Tensor, job: PhotoJob) -> Tensor:
    """Put known pixels back into a restored image, and let holes meet them smoothly."""
    assert job.mask is not None
    mask = job.mask.expand_as(x)
    joined = torch.where(mask, job.photo.colour, x)
    smooth = smooth_holes(joined.unsqueeze(0), mask.unsqueeze(0))[0]
    return torch.where(mask, joined, smooth.clamp(0, 1))


def _by_shape(jobs: Iterable[PhotoJob]) -> list[list[PhotoJob]]:
    groups: dict[tuple[int, ...], list[PhotoJob]] = {}
    for job in jobs:
        groups.setdefault(tuple(job.photo.colour.shape), []).append(job)
    return list(groups.values())


def _time_left(began: float, done: int, left: int) -> str:
    """Return the estimated time for the rest as text.

    >>> _time_left(perf_counter() - 60, 2, 4)
    '2 min left'
    """
    if left < 1:
        return "done"
    if done < 1:
        return ""
    seconds = (perf_counter() - began) / done * left
    return f"{seconds:.0f} s left" if seconds < 90 else f"{seconds / 60:.0f} min left"


def _message(error: Exception) -> str:
    """Return the message of an error in one line."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return " ".join(text.split()) or type(error).__name__
