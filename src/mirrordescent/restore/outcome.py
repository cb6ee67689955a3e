"""The result for one photograph: numbers, a line of text, and pictures for the page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent._internal.escaping import visible_name
from mirrordescent._internal.extras import requires_extra
from mirrordescent._internal.image_arrays import psnr
from mirrordescent.report import Curve
from mirrordescent.restore.deep_holes import DEEP_HOLE, has_deep_holes
from mirrordescent.restore.degradation import enlarge
from mirrordescent.restore.images import RestoredImage
from mirrordescent.restore.photo import Photo
from mirrordescent.restore.pipeline import Restored
from mirrordescent.restore.planning import RestorationPlan
from mirrordescent.restore.sources import Source
from mirrordescent.restore.weight import WeightChoice
from mirrordescent.solving import Status

LARGEST_SIDE = 1200  # of a picture on the page, in pixels
DETAIL = (480, 640)  # height and width of the detail that is shown of larger pictures
SSIM_WINDOW = 7
CANNOT_TELL = "noise cannot be told from texture: if you see noise, give it with --noise"
DEEP = f"holes deeper than about {DEEP_HOLE} pixels are filled smoothly, not invented"


class PhotoJob(NamedTuple):
    """A photograph to restore.

    Args:
        source: Its file.
        contents: Checksums of the files of the photograph, its mask and its truth.
        photo: The photograph.
        output: File to write.
        mask: True at known pixels, or None if all are known.
        alpha: Opacity of the restored photograph, or None if it has none.
        truth: The undamaged photograph, or None if it is not given.
    """

    source: Source
    contents: Mapping[str, str]
    photo: Photo
    output: Path
    mask: Tensor | None
    alpha: Tensor | None
    truth: Tensor | None

    @property
    def name(self) -> str:
        """Name of the photograph, as it is shown."""
        return visible_name(self.source.name.as_posix())

    @property
    def observed(self) -> Tensor:
        """The photograph with black missing pixels, (channels, height, width)."""
        return self.photo.colour if self.mask is None else self.mask * self.photo.colour


class Failure(NamedTuple):
    """A photograph that was not restored.

    Args:
        name: Name of the photograph.
        reason: Error message.
    """

    name: str
    reason: str


class Outcome(NamedTuple):
    """The result for one photograph, without the photograph itself to save memory.

    Args:
        name: Name of the photograph.
        record: All numbers as plain data. PSNR and SSIM are None if the truth is not given.
        curve: Gap to the lower bound along the run; None for images in tiles.
        pictures: Pictures for the page as bytes, by scene and name; only of the first photographs.
        choice: How the weight was chosen; only of the first photographs.
    """

    name: str
    record: dict[str, Any]
    curve: Curve | None = None
    pictures: Mapping[str, Mapping[str, Tensor]] = MappingProxyType({})
    choice: WeightChoice | None = None

    @property
    def size(self) -> str:
        """Width × height."""
        return f"{self.record['width']}×{self.record['height']}"

    @property
    def gap(self) -> float:
        """The proven relative gap."""
        return float(self.record["relative_gap"])

    @property
    def failed(self) -> bool:
        """Whether the answer is unusable."""
        return any(self.record["status"] == str(status) for status in Status if status.failed)

    def line(self, verbose: bool = False) -> str:
        """Return the result as a line of text.

        Args:
            verbose: Whether to add the size, the value of the objective and the iterations.
        """
        record = self.record
        parts = []
        if record["noise"] is not None:
            level = f"noise about {_percent(record['noise'])}"
            if not record["certain"]:
                level = CANNOT_TELL
            elif record["clean"]:
                level = "hardly any noise"
            parts.append(level)
        if record["missing"]:
            parts.append(f"{_percent(record['missing'])} missing")
        if record["left"]:
            parts.append("left as it is")
        else:
            if record["weight"] is None:
                parts.append(f"prior {record['prior']}")
            else:
                parts.append(f"weight {record['weight']:.2g}")
            parts.append(f"restored in {record['seconds']:.1f} s")
            parts.append(f"within {_percent(max(self.gap, 1e-4))} of the best possible")
            if record["tiles"] > 1:
                alone = "" if record.get("whole") else ", each by itself"
                parts.append(f"in {record['tiles']} tiles{alone}")
            if record["kept"]:
                parts.append("known pixels kept")
        if record["deep"]:
            parts.append(DEEP)
        if record["psnr"] is not None:
            before = record["psnr_before"]
            was = "exact" if before is None else f"{before:.2f}"
            parts.append(f"PSNR {record['psnr']:.2f} dB (was {was})")
        if record["ssim"] is not None:
            parts.append(f"SSIM {record['ssim']:.3f}")
        if verbose:
            parts += self._details()
        return f"{visible_name(record['output'])}: {', '.join(parts)}"

    def shortfall(self, plan: RestorationPlan) -> str:
        """Say in one sentence or two that the tolerance was missed, why, and what helps.

        Args:
            plan: The method, and when it stops.
        """
        if self.failed:
            return (
                f"{self.name} was not restored well: the method broke down (status "
                f"{self.record['status']}). Choose another one with --method"
            )
        reached = (
            f"{self.name} is proven to be within {_percent(self.gap)} of the best possible, but "
            f"{_percent(plan.tolerance)} is required"
        )
        if self.record["status"] == str(Status.BUDGET):
            return (
                f"{reached}. All iterations were used: allow more with --iterations, or a larger "
                "gap with --tolerance"
            )
        if self.record["status"] == str(Status.PRECISION):
            return (
                f"{reached}. Rounding errors prevent a proof of less: allow a larger gap with "
                "--tolerance"
            )
        return f"{reached}. Allow a larger gap with --tolerance"

    def _details(self) -> list[str]:
        details = [
            self.size,
            f"value {self.record['value']:.6g}",
            f"relative gap ≤ {self.gap:.1e}",
        ]
        iterations = self.record["iterations"]
        if iterations:
            steps = [f"{count} iterations of {label}" for label, count in iterations.items()]
            details.append(" + ".join(steps))
        return details


def outcome_of(
    job: PhotoJob, result: RestoredImage, seconds: float, factor: int, keep_pictures: bool
) -> Outcome:
    """Return the result for a photograph.

    Args:
        job: The photograph.
        result: The restored photograph.
        seconds: Time for the restoration.
        factor: Ratio of the sides of the restored photograph and the given one.
        keep_pictures: Whether to keep pictures for the page.
    """
    photo = job.photo
    before = job.observed
    if factor > 1:
        before = enlarge(before.unsqueeze(0), factor)[0]
    numbers = {
        "file": str(photo.path),
        "output": str(job.output),
        "width": result.x.shape[2],
        "height": result.x.shape[1],
        "channels": len(photo.colour),
        "missing": 0.0 if job.mask is None else 1 - float(job.mask.float().mean()),
        "prior": result.prior,
        "noise": None if result.noise is None else result.noise.level,
        "certain": result.certain,
        "clean": result.clean,
        "deep": job.mask is not None and has_deep_holes(job.mask),
        **_solution_numbers(result.batch, result.index),
        "psnr": _psnr(result.x, job.truth),
        "psnr_before": _psnr(before, job.truth),
        "ssim": None if job.truth is None else similarity(result.x, job.truth),
        "weight": result.weight,
        "kept": result.kept,
        "seconds": seconds,
    }
    curve = None if result.batch is None else _curve(job.name, result.batch, result.index)
    if not keep_pictures:
        return Outcome(job.name, numbers, curve)
    pictures = _pictures(job, before, result.x)
    return Outcome(job.name, numbers, curve, pictures, result.choice)


def _solution_numbers(restored: Restored | None, index: int) -> dict[str, Any]:
    if restored is None:
        return {
            "left": True,
            "value": 0.0,
            "relative_gap": 0.0,
            "iterations": {},
            "status": str(Status.CONVERGED),
            "tiles": 1,
            "whole": True,
        }
    return {
        "left": False,
        "value": float(restored.value[index]),
        "relative_gap": float(restored.gap[index]),
        "iterations": _iterations(restored, index),
        "status": str(restored.statuses[index]),
        "tiles": restored.tiles,
        "whole": restored.whole,
    }


def _iterations(restored: Restored, index: int) -> dict[str, int]:
    return {label: counts[index] for label, counts in restored.steps.items() if counts[index]}


def _curve(name: str, restored: Restored, index: int) -> Curve | None:
    """Return the gap to the lower bound until the image stopped."""
    if restored.trace is None or restored.lower is None:
        return None
    trace = restored.trace
    last = sum(_iterations(restored, index).values())
    count = len([k for k in trace.iterations if k <= last])
    gaps = trace.values[:count, index : index + 1] - restored.lower[index]
    return Curve(name, trace.iterations[:count], trace.seconds[:count], gaps)


def _psnr(image: Tensor, truth: Tensor | None) -> float | None:
    """Return the PSNR, or None if there is no truth or no error."""
    if truth is None or torch.equal(image, truth):
        return None
    return psnr(image, truth)


def _pictures(job: PhotoJob, before: Tensor, x: Tensor) -> dict[str, dict[str, Tensor]]:
    """Return small pictures for the page; of a large photograph also the middle at full size."""
    images = {"before": before, "after": x}
    if job.truth is not None:
        images["truth"] = job.truth
    scenes = {job.name: {name: _shrink(image) for name, image in images.items()}}
    height, width = x.shape[1:]
    if max(height, width) > LARGEST_SIDE:
        top = max(0, (height - DETAIL[0]) // 2)
        left = max(0, (width - DETAIL[1]) // 2)
        middle = (slice(None), slice(top, top + DETAIL[0]), slice(left, left + DETAIL[1]))
        scenes[f"{job.name}, the middle at full size"] = {
            name: _as_bytes(image[middle]) for name, image in images.items()
        }
    return scenes


def _shrink(image: Tensor) -> Tensor:
    """Return an image as bytes, with sides of at most 1200 pixels."""
    factor = max(image.shape[1:]) / LARGEST_SIDE
    if factor <= 1:
        return _as_bytes(image)
    size = [max(1, round(length / factor)) for length in image.shape[1:]]
    return _as_bytes(F.interpolate(image.unsqueeze(0), size, mode="area")[0])


def _as_bytes(image: Tensor) -> Tensor:
    return (image.clamp(0, 1) * 255).round().byte()


def similarity(image: Tensor, truth: Tensor) -> float | None:
    """Return the structural similarity (SSIM), or None for images smaller than its window."""
    with requires_extra("pictures", "The structural similarity", "scikit-image"):
        from skimage.metrics import structural_similarity

    if min(image.shape[1:]) < SSIM_WINDOW:
        return None
    measure = cast(Any, structural_similarity)
    return float(measure(image.numpy(), truth.numpy(), data_range=1.0, channel_axis=0))


def _percent(share: float) -> str:
    """Return a share as text.

    >>> _percent(0.0421), _percent(0.31), _percent(0.0009)
    ('4.2 %', '31 %', '0.09 %')
    """
    digits = 100 * share
    return f"{digits:.0f} %" if digits >= 10 else f"{digits:.2g} %"
