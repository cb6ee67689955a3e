"""Restoration of many photographs, in batches of one shape."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import mirrordescent
from mirrordescent._internal.escaping import visible_name
from mirrordescent._internal.progress import ProgressBar
from mirrordescent.restore.deciding import prior_source
from mirrordescent.restore.degradation import enlarge
from mirrordescent.restore.images import RestoredImage, restore_images
from mirrordescent.restore.masks import Masks, read_same_size
from mirrordescent.restore.outcome import Failure, Outcome, PhotoJob, outcome_of
from mirrordescent.restore.photo import read_header, read_photo
from mirrordescent.restore.planning import RestorationPlan, Task
from mirrordescent.restore.records import RECORDS, Records, hash_facts, hash_file, is_intact
from mirrordescent.restore.request import Request
from mirrordescent.restore.sources import (
    Source,
    companion_file,
    comparable,
    find_sources,
    place_of,
    real_path,
)

BATCH_PIXELS = 1 << 18  # larger batches are not faster per image
SHOWN = 12  # photographs whose pictures are kept for the page
PAGE = "index.html"  # file of the page in the output folder
# Errors that are reported for one photograph, so that the others are still restored. Torch reports
# a lack of memory by RuntimeError.
PHOTO_ERRORS = (OSError, ValueError, TypeError, LookupError, MemoryError, RuntimeError)

Say = Callable[[str], object]


@dataclass(frozen=True)
class RestorationSettings:
    """Settings for the restoration of every photograph.

    Args:
        request: What is to be done.
        out: Output folder.
        masks: How missing pixels are found.
        truth: The undamaged photograph, or a folder of them with the same names.
    """

    request: Request
    out: Path
    masks: Masks = field(default_factory=Masks)
    truth: Path | None = None

    @property
    def task(self) -> Task:
        """The task."""
        return self.request.task


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
        self.resume = resume
        self.say = say
        found = find_sources(images, settings.out)
        self.sources = found.sources
        self.unreadable = found.unreadable
        if not self.sources and not self.unreadable:
            raise ValueError("give at least one image")
        self.skipped = [visible_name(path) for path in found.skipped]
        self.headers = {source: read_header(source.path) for source in self.sources}
        self._inputs = self._input_files()
        self._reserved: dict[str, Source] = {}
        for source in self.sources:
            self._reserve(source, self.headers[source].suffix)
        self.records = Records(settings.out)
        self.done: dict[Source, dict[str, Any]] = {}
        self.loaded: dict[Source, PhotoJob] = {}
        self.shown = 0
        self.single = len(self.sources) == 1 and not self.unreadable
        if self.single and not resume:  # report a mistake before anything is written
            self.loaded[self.sources[0]] = self._load(self.sources[0])

    def run(
        self, plan: RestorationPlan, progress: bool | None = None
    ) -> Iterator[Outcome | Failure]:
        """Restore batch by batch. Every photograph is written as soon as it is restored.

        Args:
            plan: The method, and when it stops.
            progress: Whether to show a progress bar; by default on a terminal.
        """
        if self.resume:
            self.done = self.restored_before(plan)
        else:
            self.records.remove()
        count = 0
        total = len(self.sources)
        for folder, reason in self.unreadable.items():
            yield Failure(visible_name(folder), f"this folder cannot be read: {reason}")
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
            if source in self.done:
                yield Outcome(visible_name(source.name.as_posix()), self.done[source])
                continue
            try:
                job = self.loaded.pop(source) if source in self.loaded else self._load(source)
                jobs.append(job)
            except PHOTO_ERRORS as error:
                if self.single:
                    raise
                yield Failure(visible_name(source.name.as_posix()), _message(error))
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
                    yield from self._restore([job.source], plan, progress)
            began = perf_counter()

    def _restore_together(
        self, jobs: list[PhotoJob], plan: RestorationPlan, progress: bool | None, began: float
    ) -> Iterator[Outcome]:
        """Restore and write photographs of one shape."""
        images = [job.observed for job in jobs]
        # A single image, which may be large, is not copied.
        observed = images[0].unsqueeze(0) if len(images) == 1 else torch.stack(images)
        masks = [job.mask for job in jobs if job.mask is not None]
        results = restore_images(
            observed,
            torch.stack(masks).unsqueeze(1) if masks else None,
            self.settings.request,
            plan,
            compression=[job.photo.compression for job in jobs],
            announce=self.say,
            progress=progress,
        )
        seconds = (perf_counter() - began) / len(jobs)
        for job, result in zip(jobs, results, strict=True):
            outcome = self._write(job, result, seconds)
            how = self._fingerprint(plan, job.contents)
            self.records.add(self._record_name(job.output), how, job.output, outcome.record)
            self.shown += 1
            yield outcome

    def _write(self, job: PhotoJob, result: RestoredImage, seconds: float) -> Outcome:
        """Write a photograph and return the result for it."""
        factor = self.settings.request.degradation.factor
        if result.left:
            job.photo.copy(job.output)
        else:
            if job.photo.note:
                self.say(f"{visible_name(job.photo.path)}: {job.photo.note}")
            alpha = job.alpha
            if alpha is not None and factor > 1:
                alpha = enlarge(alpha[None, None], factor)[0, 0]
            job.photo.write(job.output, result.x, alpha)
        return outcome_of(job, result, seconds, factor, self.shown < SHOWN)

    def _batches(self) -> Iterator[list[Source]]:
        """Yield photographs of one shape, according to their headers, not too many at a time."""
        by_shape: dict[tuple[int, ...], list[Source]] = {}
        for source in self.sources:
            by_shape.setdefault(self.headers[source].shape, []).append(source)
        for shape, same_shape in by_shape.items():
            count = max(1, BATCH_PIXELS // (shape[0] * shape[1])) if shape else 1
            for i in range(0, len(same_shape), count):
                yield same_shape[i : i + count]

    def _load(self, source: Source) -> PhotoJob:
        """Read a photograph, its mask and its truth."""
        settings = self.settings
        # Before the files are read: if one changes in between, the result is not reused.
        contents = self._contents(source)
        photo = read_photo(source.path)
        mask = None
        alpha = photo.alpha
        truth = None
        shown = visible_name(source.path)
        if settings.task == "inpaint":
            known = settings.masks.known_pixels(photo, source)
            mask = known.mask
            alpha = known.alpha
            self.say(f"{shown}: {known.words}; {known.missing:.1%} missing")
            if known.question:
                self.say(known.question)
        if settings.truth is not None:
            factor = settings.request.degradation.factor
            truth = read_same_size(companion_file(settings.truth, source), photo, factor).colour
            if len(truth) != len(photo.colour):
                raise ValueError(
                    f"{shown} has {len(photo.colour)} channels, but its truth {len(truth)}"
                )
        elif settings.masks.missing is not None:
            truth = photo.colour
        output = self._reserve(source, photo.suffix)
        return PhotoJob(source, contents, photo, output, mask, alpha, truth)

    def _companions(self, source: Source) -> dict[str, Path]:
        """Return the files that belong to a photograph by their role."""
        places = {"mask": self.settings.masks.place, "truth": self.settings.truth}
        return {
            role: companion_file(place, source)
            for role, place in places.items()
            if place is not None
        }

    def _input_files(self) -> dict[str, str]:
        """Return the role of every input by its comparable path."""
        files = {}
        for place in (self.settings.masks.place, self.settings.truth):
            if place is None:
                continue
            below = [place]
            if place.is_dir():
                below = [file for file in place.rglob("*") if not self._is_result(file, place)]
            files.update(dict.fromkeys(below, "mask or truth"))
        for source in self.sources:
            files[source.path] = "photograph"
            with suppress(OSError, ValueError):  # reported when the photograph is read
                files.update({file: role for role, file in self._companions(source).items()})
        inputs = {}
        for file, role in files.items():
            inputs[comparable(real_path(file))] = role
            inputs[comparable(place_of(file))] = role
        return inputs

    def _is_result(self, file: Path, place: Path) -> bool:
        """Return whether a file is in an output folder that lies inside a folder of masks."""
        out = real_path(self.settings.out)
        if out == real_path(place) or not out.is_relative_to(real_path(place)):
            return False
        return place_of(file).is_relative_to(out)

    def _reserve(self, source: Source, suffix: str) -> Path:
        """Return the file to write for a photograph.

        Args:
            source: The photograph.
            suffix: Suffix of the restored file.

        Raises:
            ValueError: The file is an input, a report or a folder, or another photograph is
                written to it.
        """
        output = (self.settings.out / source.name).with_suffix(suffix)
        key = comparable(place_of(output))
        role = self._inputs.get(key) or self._inputs.get(comparable(real_path(output)))
        if role is not None:
            raise ValueError(
                f"the {role} {visible_name(output)} would be overwritten by the restored "
                f"{visible_name(source.path)}: choose another folder with --out"
            )
        if key in (comparable(place_of(self.settings.out / name)) for name in (PAGE, RECORDS)):
            raise ValueError(
                f"{visible_name(source.path)} would be written to {visible_name(output)}, which is "
                "the name of a report: rename it"
            )
        if output.is_dir():
            raise ValueError(
                f"{visible_name(source.path)} cannot be written to {visible_name(output)}, which "
                "is a folder: choose another folder with --out"
            )
        other = self._reserved.setdefault(key, source)
        if other != source:
            raise ValueError(
                f"{visible_name(other.path)} and {visible_name(source.path)} would both be written "
                f"to {visible_name(output)}: restore them to different folders with --out"
            )
        return output

    def restored_before(self, plan: RestorationPlan) -> dict[Source, dict[str, Any]]:
        """Return the records of photographs that need not be restored again.

        A photograph is left out if an earlier run has restored it with the same options, method,
        mask and truth, and if the restored file is intact.

        Args:
            plan: The method, and when it stops.
        """
        if not plan.source:
            return {}
        entries = self.records.read()
        done = {}
        for source in self.sources:
            output = self._reserve(source, self.headers[source].suffix)
            entry = entries.get(self._record_name(output))
            if entry is None:
                continue
            with suppress(OSError, ValueError):  # reported when the photograph is read
                how = self._fingerprint(plan, self._contents(source))
                if entry["how"] == how and is_intact(entry, output):
                    paths = {"file": str(source.path), "output": str(output)}
                    done[source] = entry["record"] | paths
        return done

    def _record_name(self, output: Path) -> str:
        """Return the path of a restored file relative to the output folder."""
        return output.relative_to(self.settings.out).as_posix()

    def _contents(self, source: Source) -> dict[str, str]:
        """Return checksums of the files of a photograph, its mask and its truth."""
        files = {"photograph": source.path, **self._companions(source)}
        return {role: hash_file(file) for role, file in files.items() if file.is_file()}

    def _fingerprint(self, plan: RestorationPlan, contents: Mapping[str, str]) -> str:
        """Return a checksum of everything that determines a result.

        The names are fixed here. They do not follow the names of classes and fields.
        """
        request = self.settings.request
        masks = self.settings.masks
        kernel = request.degradation.kernel
        facts = {
            "version": mirrordescent.__version__,
            "contents": dict(contents),
            "task": request.task,
            "prior": prior_source(request.prior),
            "noise": request.noise,
            "strength": request.strength,
            "weight": request.weight,
            "keep known": request.keep_known,
            "kernel": None if kernel is None else kernel.tolist(),
            "factor": request.degradation.factor,
            "total variation": dict(request.variant),
            "white": masks.white,
            "colour": masks.colour,
            "missing": masks.missing,
            "seed": masks.seed,
            "method": plan.source,
            "continued by": plan.then,
            "iterations": plan.iterations,
            "tolerance": plan.tolerance,
            "tolerance is promised": plan.promised,
            "kernels": plan.fused,
        }
        return hash_facts(facts)


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
    return visible_name(" ".join(text.split())) or type(error).__name__
