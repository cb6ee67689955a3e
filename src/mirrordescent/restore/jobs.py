"""Many photographs at once: what to read, what is missing in each, where to write, in batches of one shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from mirrordescent.data.directory import DataMissing
from mirrordescent.data.images import SUFFIXES
from mirrordescent.images import psnr
from mirrordescent.problems.tv import TVDenoising, TVInpainting
from mirrordescent.restore.photo import Photo, read_photo
from mirrordescent.restore.pipeline import Restored, restore
from mirrordescent.restore.planning import Plan, Task
from mirrordescent.solve import Status, Trace

MORE_SUFFIXES = frozenset((".avif", ".jfif", ".jp2", ".j2k", ".qoi", ".tga"))
BATCH_PIXELS = 1 << 20  # larger batches are no faster per image
SHOWN = 12  # photographs whose pictures are kept to be looked at


@dataclass(frozen=True)
class Source:
    """An image file, and its name relative to the folder to write to."""

    path: Path
    name: Path


@dataclass(frozen=True)
class Job:
    """A photograph, which pixels of it are known (None: all), its opacity afterwards, and the truth if it is known."""

    photo: Photo
    output: Path
    mask: Tensor | None
    alpha: Tensor | None
    truth: Tensor | None

    @property
    def observed(self) -> Tensor:
        """The photograph with its missing pixels black: (channels, height, width)."""
        return self.photo.colour if self.mask is None else self.mask * self.photo.colour


class Quality(NamedTuple):
    """How near the truth a photograph is, and was."""

    psnr: float
    psnr_before: float
    ssim: float | None


@dataclass(frozen=True)
class Outcome:
    """How one photograph was restored; ``pictures`` to look at are kept of the first few."""

    name: str
    job: Job
    found: Restored
    index: int
    quality: Quality | None
    pictures: dict[str, Tensor]

    @property
    def size(self) -> str:
        """Width × height."""
        width, height = self.job.photo.size
        return f"{width}×{height}"

    @property
    def value(self) -> float:
        """f."""
        return float(self.found.value[self.index])

    @property
    def gap(self) -> float:
        """The relative gap, proven."""
        return float(self.found.gap[self.index])

    @property
    def lower(self) -> float | None:
        """The lower bound, if there is one for the whole image."""
        return None if self.found.lower is None else float(self.found.lower[self.index])

    @property
    def steps(self) -> dict[str, int]:
        """Iterations by method."""
        return {label: counts[self.index] for label, counts in self.found.steps.items() if counts[self.index]}

    @property
    def status(self) -> Status:
        """How it ended."""
        return self.found.statuses[self.index]

    @property
    def trace(self) -> Trace | None:
        """The run of this image of a batch, up to the iteration at which it stopped."""
        if self.found.trace is None:
            return None
        iterations, last = self.found.trace.iterations, sum(self.steps.values())
        count = sum(k <= last for k in iterations)
        values = self.found.trace.values[:count, self.index : self.index + 1]
        return Trace(iterations[:count], self.found.trace.seconds[:count], values)

    def line(self) -> str:
        """Say it in a line."""
        steps = " + ".join(f"{count} iterations of {label}" for label, count in self.steps.items())
        parts = [self.size, f"value {self.value:.6g}", steps, f"relative gap ≤ {self.gap:.1e}"]
        parts += [f"{self.found.tiles} tiles"] if self.found.tiles > 1 else []
        parts += [f"{self.found.seconds:.1f} s"]
        if self.quality is not None:
            parts.append(f"PSNR {self.quality.psnr:.2f} dB (was {self.quality.psnr_before:.2f})")
            parts += [f"SSIM {self.quality.ssim:.3f}"] if self.quality.ssim is not None else []
        return f"{self.job.output}: {', '.join(parts)}"

    def record(self) -> dict[str, Any]:
        """Return it as plain data."""
        width, height = self.job.photo.size
        return {
            "file": str(self.job.photo.path),
            "output": str(self.job.output),
            "width": width,
            "height": height,
            "channels": len(self.job.photo.colour),
            "missing": 0.0 if self.job.mask is None else 1 - float(self.job.mask.float().mean()),
            "value": self.value,
            "relative_gap": self.gap,
            "iterations": self.steps,
            "seconds": self.found.seconds,
            "status": str(self.status),
            "tiles": self.found.tiles,
            **(self.quality._asdict() if self.quality else dict.fromkeys(Quality._fields)),
        }


class Jobs:
    """Photographs to restore. All of them are read once before the first is worked on, so that mistakes come first.

    Args:
        task: "denoise" or "inpaint".
        images: files and folders.
        out: the folder to write to.
        weight: λ.
        mask: an image, or a folder of them by the photographs' names: white where pixels are known.
        truth: the same, of the undamaged photographs.
        missing: share of the pixels to remove at random, for a trial.
        seed: of that.
    """

    def __init__(
        self,
        task: Task,
        images: Sequence[Path],
        out: Path,
        weight: float,
        mask: Path | None = None,
        truth: Path | None = None,
        missing: float | None = None,
        seed: int = 0,
    ) -> None:
        if missing is not None and not 0 < missing < 1:
            raise ValueError(f"missing must be a share between 0 and 1, got {missing}")
        if mask is not None and missing is not None:
            raise ValueError("either a mask says which pixels are missing, or a share of them is removed: not both")
        self.task, self.out, self.weight = task, out, weight
        self.mask, self.truth, self.missing, self.seed = mask, truth, missing, seed
        self.sources = list(_sources(images))
        if not self.sources:
            raise ValueError("give at least one image")
        self.shapes, self.outputs = [], []
        for source in self.sources:
            job = self._job(source)
            self.shapes.append(tuple(job.photo.colour.shape))
            self.outputs.append(job.output)
        self._require_outputs_apart()

    def run(self, plan: Plan, progress: bool | None = None) -> Iterator[Outcome]:
        """Restore batch by batch, and write every photograph as soon as it is there."""
        shown = 0
        for batch in self._batches():
            jobs = [self._job(source) for source in batch]
            found = restore(self._problem(jobs), plan, progress=progress)
            for index, (job, source) in enumerate(zip(jobs, batch, strict=True)):
                x = found.x[index].float().clamp(0, 1)
                job.photo.write(job.output, x, job.alpha)
                yield _outcome(job, source, x, found, index, shown < SHOWN)
                shown += 1

    def _batches(self) -> Iterator[list[Source]]:
        by_shape: dict[tuple[int, ...], list[Source]] = {}
        for source, shape in zip(self.sources, self.shapes, strict=True):
            by_shape.setdefault(shape, []).append(source)
        for shape, sources in by_shape.items():
            count = max(1, BATCH_PIXELS // (shape[1] * shape[2]))
            yield from (sources[i : i + count] for i in range(0, len(sources), count))

    def _problem(self, jobs: list[Job]) -> TVInpainting:
        observed = torch.stack([job.observed for job in jobs])
        if self.task == "denoise":
            return TVDenoising(observed, self.weight)
        masks = [job.mask for job in jobs if job.mask is not None]
        return TVInpainting(observed, torch.stack(masks).unsqueeze(1), self.weight)

    def _job(self, source: Source) -> Job:
        photo = read_photo(source.path)
        mask, alpha = self._known(photo, source)
        if mask is not None and not bool(mask.any()):
            raise ValueError(f"no pixel of {source.path} is known: there is nothing to restore it from")
        truth = None
        if self.truth is not None:
            truth = _same_size(_beside(self.truth, source), photo).colour
            if len(truth) != len(photo.colour):
                raise ValueError(f"{source.path} has {len(photo.colour)} channels, but its truth {len(truth)}")
        elif self.missing is not None:
            truth = photo.colour
        output = (self.out / source.name).with_suffix(photo.suffix)
        return Job(photo, output, mask, alpha, truth)

    def _known(self, photo: Photo, source: Source) -> tuple[Tensor | None, Tensor | None]:
        """Return which pixels are known, and the opacity once the others are filled in."""
        if self.task == "denoise":
            return None, photo.alpha
        if self.mask is not None:
            return _same_size(_beside(self.mask, source), photo).colour.mean(0) >= 0.5, photo.alpha
        if self.missing is not None:
            generator = torch.Generator().manual_seed(self.seed)
            return torch.rand(photo.colour.shape[1:], generator=generator) >= self.missing, photo.alpha
        if photo.alpha is not None and bool((photo.alpha == 0).any()):
            return photo.alpha > 0, torch.where(photo.alpha > 0, photo.alpha, 1.0)
        raise ValueError(
            f"which pixels of {source.path} are missing? Give a mask, make them transparent, "
            "or remove a share of them for a trial"
        )

    def _require_outputs_apart(self) -> None:
        read = {source.path.resolve() for source in self.sources}
        for other in (self.mask, self.truth):
            if other is not None:
                read |= {_beside(other, source).resolve() for source in self.sources}
        written: dict[Path, Path] = {}
        for source, output in zip(self.sources, map(Path.resolve, self.outputs), strict=True):
            if output in read:
                raise ValueError(f"{output} would be overwritten: choose another folder to write to")
            if output in written:
                raise ValueError(f"{written[output]} and {source.path} would both be written to {output}")
            written[output] = source.path


def _sources(images: Sequence[Path]) -> Iterator[Source]:
    for path in images:
        if not path.is_dir():
            yield Source(path, Path(path.name))
            continue
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES | MORE_SUFFIXES and p.is_file())
        found = [p for p in found if not p.name.startswith(".")]  # what systems hide beside pictures
        if not found:
            raise DataMissing(f"there is no image in {path}")
        yield from (Source(p, p.relative_to(path)) for p in found)


def _beside(place: Path, source: Source) -> Path:
    """Return the file itself, or the one in the folder that has the photograph's name, whatever its suffix."""
    if not place.is_dir():
        return place
    found = sorted((place / source.name.parent).glob(f"{escape(source.name.stem)}.*"))
    if not found:
        raise DataMissing(f"there is no image {source.name.with_suffix('')} in {place}")
    return found[0]


def _same_size(path: Path, photo: Photo) -> Photo:
    other = read_photo(path)
    if other.size != photo.size:
        (width, height), (expected_width, expected_height) = other.size, photo.size
        raise ValueError(f"{path} is {width}×{height}, but {photo.path} is {expected_width}×{expected_height}")
    return other


def _outcome(job: Job, source: Source, x: Tensor, found: Restored, index: int, keep: bool) -> Outcome:
    pictures, quality = {"before": job.observed, "after": x}, None
    if job.truth is not None:
        pictures["truth"] = job.truth
        quality = Quality(psnr(x, job.truth), psnr(job.observed, job.truth), similarity(x, job.truth))
    return Outcome(source.name.as_posix(), job, found, index, quality, pictures if keep else {})


def similarity(image: Tensor, truth: Tensor) -> float | None:
    """Return the structural similarity (SSIM); None for images smaller than its window."""
    from skimage.metrics import structural_similarity

    if min(image.shape[1:]) < 7:
        return None
    measure = cast(Any, structural_similarity)
    return float(measure(image.numpy(), truth.numpy(), data_range=1.0, channel_axis=0))
