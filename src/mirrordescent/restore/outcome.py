"""How one photograph was restored: in numbers, in words, and in pictures to look at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent._internal.extras import requires_extra
from mirrordescent._internal.image_arrays import psnr
from mirrordescent.report import Curve
from mirrordescent.restore.photo import Photo
from mirrordescent.restore.pipeline import Restored
from mirrordescent.restore.weight import Choice
from mirrordescent.solving import Status

LARGEST_SIDE = 1200  # pixels of a picture on the page
DETAIL = (480, 640)  # height and width of what is shown of larger ones at full size


class Job(NamedTuple):
    """A photograph, which pixels of it are known (None: all), its opacity afterwards, and the truth
    if it is known.
    """

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


class Failure(NamedTuple):
    """A photograph that was not restored, and why."""

    name: str
    reason: str


class Outcome(NamedTuple):
    """How one photograph was restored, without the photograph itself: there may be thousands of
    them.

    Args:
        name: of the photograph.
        record: all numbers, as plain data; PSNR and SSIM are None if the truth is not known.
        curve: its gaps to the lower bound until it stopped; None in tiles, which have no common
            bound.
        pictures: to look at, by scene and name, as bytes of at most 1200 pixels a side; kept of the
            first few.
        choice: how its weight was chosen.
    """

    name: str
    record: dict[str, Any]
    curve: Curve | None = None
    pictures: Mapping[str, Mapping[str, Tensor]] = MappingProxyType({})
    choice: Choice | None = None

    @property
    def size(self) -> str:
        """Width × height."""
        return f"{self.record['width']}×{self.record['height']}"

    @property
    def gap(self) -> float:
        """The relative gap, proven."""
        return float(self.record["relative_gap"])

    @property
    def failed(self) -> bool:
        """Whether the answer is of no use."""
        return any(self.record["status"] == str(status) for status in Status if status.failed)

    def line(self, verbose: bool = False) -> str:
        """Say it in a line."""
        found = self.record
        parts = [self._noise()] if found["noise"] is not None else []
        parts += [f"{_percent(found['missing'])} missing"] if found["missing"] else []
        if found["left"]:
            parts += ["left as it is"]
        else:
            parts += [f"weight {found['weight']:.2g}", f"restored in {found['seconds']:.1f} s"]
            parts += [f"within {_percent(max(self.gap, 1e-4))} of the best possible"]
            parts += [f"in {found['tiles']} tiles, each by itself"] if found["tiles"] > 1 else []
            parts += ["known pixels kept"] if found["kept"] else []
        if found["psnr"] is not None:
            before = "exact" if found["psnr_before"] is None else f"{found['psnr_before']:.2f}"
            parts += [f"PSNR {found['psnr']:.2f} dB (was {before})"]
        parts += [f"SSIM {found['ssim']:.3f}"] if found["ssim"] is not None else []
        if verbose:
            steps = " + ".join(
                f"{count} iterations of {label}" for label, count in found["iterations"].items()
            )
            parts += [self.size, f"value {found['value']:.6g}", f"relative gap ≤ {self.gap:.1e}"]
            parts += [steps] if steps else []
        return f"{found['output']}: {', '.join(parts)}"

    def _noise(self) -> str:
        return (
            f"noise about {_percent(self.record['noise'])}"
            if not self.record["clean"]
            else "hardly any noise"
        )


def outcome_of(
    job: Job,
    x: Tensor,
    found: Restored | None,
    index: int,
    choice: Choice | None,
    record: dict[str, Any],
    keep: bool,
) -> Outcome:
    """Put together what is known of a restored photograph; one that was left as it is has no
    solution.
    """
    photo = job.photo
    truth = job.truth
    curve = None
    steps = {}
    if found is not None:
        steps = {label: counts[index] for label, counts in found.steps.items() if counts[index]}
        if found.trace is not None and found.lower is not None:
            count = sum(k <= sum(steps.values()) for k in found.trace.iterations)
            gaps = found.trace.values[:count, index : index + 1] - found.lower[index]
            curve = Curve(
                job.name, found.trace.iterations[:count], found.trace.seconds[:count], gaps
            )
    numbers = {
        "file": str(photo.path),
        "output": str(job.output),
        "width": photo.size[0],
        "height": photo.size[1],
        "channels": len(photo.colour),
        "missing": 0.0 if job.mask is None else 1 - float(job.mask.float().mean()),
        "noise": None if choice is None else choice.noise,
        "clean": choice is not None and choice.clean,
        "left": found is None,
        "value": 0.0 if found is None else float(found.value[index]),
        "relative_gap": 0.0 if found is None else float(found.gap[index]),
        "iterations": steps,
        "status": str(Status.CONVERGED if found is None else found.statuses[index]),
        "tiles": 1 if found is None else found.tiles,
        "psnr": _psnr(x, truth),
        "psnr_before": _psnr(job.observed, truth),
        "ssim": None if truth is None else similarity(x, truth),
        **record,
    }
    return Outcome(
        job.name, numbers, curve, _pictures(job, x) if keep else {}, choice if keep else None
    )


def _psnr(image: Tensor, truth: Tensor | None) -> float | None:
    """Return the PSNR; None if there is no truth, or no error."""
    if truth is None or torch.equal(image, truth):
        return None
    return psnr(image, truth)


def _pictures(job: Job, x: Tensor) -> dict[str, dict[str, Tensor]]:
    """Return what is shown of a photograph, small enough to be kept; of a large one also a part at
    full size.
    """
    images = {"before": job.observed, "after": x} | (
        {} if job.truth is None else {"truth": job.truth}
    )
    scenes = {job.name: {name: _small(image) for name, image in images.items()}}
    height, width = x.shape[1:]
    if max(height, width) > LARGEST_SIDE:
        top, left = (
            (length - part) // 2 for length, part in zip((height, width), DETAIL, strict=True)
        )
        rows = slice(max(0, top), max(0, top) + DETAIL[0])
        columns = slice(max(0, left), max(0, left) + DETAIL[1])
        scenes[f"{job.name}, the middle at full size"] = {
            n: _bytes(i[:, rows, columns]) for n, i in images.items()
        }
    return scenes


def _small(image: Tensor) -> Tensor:
    factor = max(image.shape[1:]) / LARGEST_SIDE
    if factor <= 1:
        return _bytes(image)
    size = [max(1, round(length / factor)) for length in image.shape[1:]]
    return _bytes(F.interpolate(image.unsqueeze(0), size, mode="area")[0])


def _bytes(image: Tensor) -> Tensor:
    return (image.clamp(0, 1) * 255).round().byte()


def similarity(image: Tensor, truth: Tensor) -> float | None:
    """Return the structural similarity (SSIM); None for images smaller than its window."""
    with requires_extra("pictures", "The structural similarity", "scikit-image"):
        from skimage.metrics import structural_similarity

    if min(image.shape[1:]) < 7:
        return None
    measure = cast(Any, structural_similarity)
    return float(measure(image.numpy(), truth.numpy(), data_range=1.0, channel_axis=0))


def _percent(share: float) -> str:
    """Return a share as people say it.

    >>> _percent(0.0421), _percent(0.31), _percent(0.0009)
    ('4.2 %', '31 %', '0.09 %')
    """
    digits = 100 * share
    return f"{digits:.0f} %" if digits >= 10 else f"{digits:.2g} %"
