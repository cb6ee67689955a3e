"""Many photographs at once: what to read, what is missing in each, where to write, in batches of one shape."""

from collections.abc import Iterable, Iterator, Sequence
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from mirrordescent.data.errors import DataMissing
from mirrordescent.data.images import IMAGE
from mirrordescent.images import psnr
from mirrordescent.problems.tv import TVDenoising, TVInpainting
from mirrordescent.report import Curve
from mirrordescent.restore.photo import Photo, read_photo
from mirrordescent.restore.pipeline import Restored, restore
from mirrordescent.restore.planning import Plan, Task
from mirrordescent.solve import Status

BATCH_PIXELS = 1 << 20  # larger batches are no faster per image
SHOWN = 12  # photographs whose pictures are kept to be looked at


class Source(NamedTuple):
    """An image file, and its name relative to the folder to write to."""

    path: Path
    name: Path


class Job(NamedTuple):
    """A photograph, which pixels of it are known (None: all), its opacity afterwards, and the truth if it is known."""

    name: str
    photo: Photo
    output: Path
    mask: Tensor | None
    alpha: Tensor | None
    truth: Tensor | None

    @property
    def observed(self) -> Tensor:
        """The photograph with its missing pixels black: (channels, height, width)."""
        return self.photo.colour if self.mask is None else self.mask * self.photo.colour


class Outcome(NamedTuple):
    """How one photograph was restored, without the photograph itself: there may be thousands of them.

    Args:
        name: of the photograph.
        record: all numbers, as plain data; PSNR and SSIM are None if the truth is not known.
        status: how it ended.
        curve: its gaps to the lower bound until it stopped; None in tiles, which have no common bound.
        pictures: to look at; kept of the first few.
    """

    name: str
    record: dict[str, Any]
    status: Status
    curve: Curve | None
    pictures: dict[str, Tensor]

    @property
    def size(self) -> str:
        """Width × height."""
        return f"{self.record['width']}×{self.record['height']}"

    @property
    def gap(self) -> float:
        """The relative gap, proven."""
        return float(self.record["relative_gap"])

    def line(self) -> str:
        """Say it in a line."""
        found = self.record
        steps = " + ".join(f"{count} iterations of {label}" for label, count in found["iterations"].items())
        parts = [self.size, f"value {found['value']:.6g}", steps, f"relative gap ≤ {self.gap:.1e}"]
        parts += [f"{found['tiles']} tiles"] if found["tiles"] > 1 else []
        parts += [f"{found['seconds']:.1f} s"]
        parts += [f"PSNR {found['psnr']:.2f} dB (was {found['psnr_before']:.2f})"] if found["psnr"] is not None else []
        parts += [f"SSIM {found['ssim']:.3f}"] if found["ssim"] is not None else []
        return f"{found['output']}: {', '.join(parts)}"


class Jobs:
    """Photographs to restore. All of them are read once before the first is worked on, so that mistakes show at once.

    Args:
        task: "denoise" or "inpaint".
        images: files and folders.
        out: the folder to write to.
        weight: λ.
        mask: an image, or a folder of them with the photographs' names: white where pixels are known.
        truth: the undamaged photograph, or a folder of them with the same names.
        missing: share of the pixels to remove at random, for a trial.
        seed: decides which pixels are removed.
        variant: keywords of :class:`~mirrordescent.problems.TVInpainting`, such as ``isotropic=True``.
    """

    def __init__(
        self, task: Task, images: Sequence[Path], out: Path, weight: float, mask: Path | None = None,
        truth: Path | None = None, missing: float | None = None, seed: int = 0, **variant: Any,
    ) -> None:  # fmt: skip
        if missing is not None and not 0 < missing < 1:
            raise ValueError(f"missing must be a share between 0 and 1, got {missing}")
        if mask is not None and missing is not None:
            raise ValueError("either a mask says which pixels are missing, or a share of them is removed: not both")
        self.task, self.out, self.weight = task, out, weight
        self.mask, self.truth, self.missing, self.seed, self.variant = mask, truth, missing, seed, variant
        self.sources = list(_sources(images))
        if not self.sources:
            raise ValueError("give at least one image")
        jobs = map(self._job, self.sources)  # one at a time: all of them may be more than the memory holds
        self.shapes, outputs = zip(*((job.photo.colour.shape, job.output) for job in jobs), strict=True)
        self._require_outputs_apart(outputs)

    def run(self, plan: Plan, progress: bool | None = None) -> Iterator[Outcome]:
        """Restore batch by batch, and write every photograph as soon as it is done."""
        shown = 0
        for batch in self._batches():
            jobs = [self._job(source) for source in batch]
            found = restore(self._problem(jobs), plan, progress=progress)
            for index, job in enumerate(jobs):
                x = found.x[index].float().clamp(0, 1)
                job.photo.write(job.output, x, job.alpha)
                yield _outcome(job, x, found, index, shown < SHOWN)
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
            return TVDenoising(observed, self.weight, **self.variant)
        masks = [job.mask for job in jobs if job.mask is not None]
        return TVInpainting(observed, torch.stack(masks).unsqueeze(1), self.weight, **self.variant)

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
        return Job(source.name.as_posix(), photo, output, mask, alpha, truth)

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

    def _require_outputs_apart(self, outputs: Iterable[Path]) -> None:
        read = {source.path.resolve() for source in self.sources}
        for other in (self.mask, self.truth):
            if other is not None:
                read |= {_beside(other, source).resolve() for source in self.sources}
        written: dict[Path, Path] = {}
        for source, output in zip(self.sources, map(Path.resolve, outputs), strict=True):
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
        found = sorted(p for p in path.rglob("*") if IMAGE.fullmatch(p.name) and p.is_file())
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
        size, wanted = ("×".join(map(str, each.size)) for each in (other, photo))
        raise ValueError(f"{path} is {size}, but {photo.path} is {wanted}")
    return other


def _outcome(job: Job, x: Tensor, found: Restored, index: int, keep: bool) -> Outcome:
    photo, truth, curve = job.photo, job.truth, None
    steps = {label: counts[index] for label, counts in found.steps.items() if counts[index]}
    if found.trace is not None and found.lower is not None:
        count = sum(k <= sum(steps.values()) for k in found.trace.iterations)
        gaps = found.trace.values[:count, index : index + 1] - found.lower[index]
        curve = Curve(job.name, found.trace.iterations[:count], found.trace.seconds[:count], gaps)
    record = {
        "file": str(photo.path),
        "output": str(job.output),
        "width": photo.size[0],
        "height": photo.size[1],
        "channels": len(photo.colour),
        "missing": 0.0 if job.mask is None else 1 - float(job.mask.float().mean()),
        "value": float(found.value[index]),
        "relative_gap": float(found.gap[index]),
        "iterations": steps,
        "seconds": found.seconds,
        "status": str(found.statuses[index]),
        "tiles": found.tiles,
        "psnr": None if truth is None else psnr(x, truth),
        "psnr_before": None if truth is None else psnr(job.observed, truth),
        "ssim": None if truth is None else similarity(x, truth),
    }
    pictures = {"before": job.observed, "after": x, "truth": truth} if keep else {}
    shown = {name: image for name, image in pictures.items() if image is not None}
    return Outcome(job.name, record, found.statuses[index], curve, shown)


def similarity(image: Tensor, truth: Tensor) -> float | None:
    """Return the structural similarity (SSIM); None for images smaller than its window."""
    from skimage.metrics import structural_similarity

    if min(image.shape[1:]) < 7:
        return None
    measure = cast(Any, structural_similarity)
    return float(measure(image.numpy(), truth.numpy(), data_range=1.0, channel_axis=0))
