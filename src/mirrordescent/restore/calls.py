"""One call to restore an image in Python, with the results of the command line."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor

from mirrordescent.restore.deciding import require_prior
from mirrordescent.restore.degradation import Degradation, as_kernel
from mirrordescent.restore.grid_arrays import denoise_grids
from mirrordescent.restore.image_kinds import AnyImage, mask_of_any, pixels_of_any
from mirrordescent.restore.images import RestoredImage, restore_images
from mirrordescent.restore.masks import White
from mirrordescent.restore.outcome import CANNOT_TELL
from mirrordescent.restore.planning import plan_restoration
from mirrordescent.restore.request import PriorLike, Request
from mirrordescent.solving import Status

Kind = TypeVar("Kind", bound=AnyImage)


@dataclass(frozen=True, eq=False)
class RestorationResult:
    """A restored image or batch, and how it was restored.

    Args:
        image: The restored image, of the kind that was given.
        images: The results for the images of the batch.
    """

    image: Any
    images: list[RestoredImage]

    @property
    def statuses(self) -> list[Status]:
        """The status of every image."""
        return [each.status for each in self.images]

    @property
    def gap(self) -> list[float]:
        """The proven relative gap of every image."""
        return [each.gap for each in self.images]

    @property
    def weight(self) -> list[float | None]:
        """The weight λ of the total variation of every image; None for a learned prior."""
        return [each.weight for each in self.images]

    @property
    def noise(self) -> list[float | None]:
        """The noise of every image, estimated or given; None if a weight was given."""
        return [None if each.noise is None else each.noise.level for each in self.images]

    @property
    def prior(self) -> list[str]:
        """The prior of every image."""
        return [each.prior for each in self.images]


@overload
def denoise(
    image: Kind,
    *,
    noise: float | None = ...,
    strength: float = ...,
    weight: float | None = ...,
    prior: PriorLike = ...,
    gap: float | None = ...,
    axes: int | Sequence[int] | None = ...,
    spacing: Sequence[float] | None = ...,
    return_result: Literal[False] = ...,
) -> Kind: ...


@overload
def denoise(
    image: AnyImage,
    *,
    noise: float | None = ...,
    strength: float = ...,
    weight: float | None = ...,
    prior: PriorLike = ...,
    gap: float | None = ...,
    axes: int | Sequence[int] | None = ...,
    spacing: Sequence[float] | None = ...,
    return_result: Literal[True],
) -> RestorationResult: ...


def denoise(
    image: Any,
    *,
    noise: float | None = None,
    strength: float = 1.0,
    weight: float | None = None,
    prior: PriorLike = "auto",
    gap: float | None = None,
    axes: int | Sequence[int] | None = None,
    spacing: Sequence[float] | None = None,
    return_result: bool = False,
) -> Any:
    """Remove noise from an image, as ``mirrordescent solve denoise`` does.

    With ``axes``, remove noise from signals, volumes or video by total variation over these axes,
    in the units of the array; see :func:`~mirrordescent.restore.denoise_grids`.

    Args:
        image: NumPy array (height, width) or (height, width, channels); tensor (channels, height,
            width); a batch of either; or a Pillow image. Values are bytes, 16-bit integers, or
            floating-point numbers from 0 to 1.
        noise: Standard deviation of the noise for values from 0 to 1, such as 0.05 for 5 %; it is
            estimated by default.
        strength: Factor of the noise level that is assumed: less than 1 keeps more detail, more
            than 1 gives a smoother image.
        weight: Weight λ of the total variation, in place of noise and strength.
        prior: "tv" for total variation, "photo" for the learned prior, the file of a learned prior,
            or a prior itself. With "auto", the learned prior is used for noise up to 20 %; in
            inpainting for colour images only, and in deblurring for colour images with noise up to
            3 %.
        gap: Relative gap to the minimum of the objective that must be proven.
        axes: Axes of signals (one), images (two), volumes or video (three); other axes are a
            batch. With axes, ``noise`` is in the units of the array, and ``prior`` is total
            variation.
        spacing: Distances of neighbours along the axes, for ``axes``; 1 by default. In video, a
            larger distance in time blends frames less.
        return_result: Whether to return a :class:`RestorationResult` with the noise, the weight,
            the gap and the status beside the image. With axes, ``restore.denoise_grids`` does.

    Returns:
        An image of the same kind, shape and type. Pillow images keep EXIF data and colour profile
        in ``info``.

    >>> import numpy as np
    >>> import mirrordescent as md
    >>> noisy = 0.5 + 0.1 * np.random.default_rng(0).standard_normal((64, 64))
    >>> bool(md.denoise(noisy).std() < 0.03)
    True
    >>> steps = np.repeat([0.0, 1.0], 50) + 0.1 * np.random.default_rng(0).standard_normal(100)
    >>> len(np.unique(md.denoise(steps, axes=0, noise=0.1).round(6))) < 20
    True
    """
    if axes is not None:
        if prior not in ("auto", "tv"):
            raise ValueError(f"axes need total variation, prior='tv'; got {prior!r}")
        if return_result:
            raise ValueError("return_result is for images; with axes, call restore.denoise_grids")
        return denoise_grids(
            image,
            axes,
            spacing=spacing,
            noise=noise,
            strength=strength,
            weight=weight,
            gap=gap,
        ).array
    if spacing is not None:
        raise ValueError("spacing needs axes")
    request = Request("denoise", prior, noise, strength, weight)
    return _restore(image, None, request, gap, return_result)


@overload
def inpaint(
    image: Kind,
    mask: AnyImage,
    *,
    white: White = ...,
    keep_known: bool | None = ...,
    noise: float | None = ...,
    strength: float = ...,
    weight: float | None = ...,
    prior: PriorLike = ...,
    gap: float | None = ...,
    return_result: Literal[False] = ...,
) -> Kind: ...


@overload
def inpaint(
    image: AnyImage,
    mask: AnyImage,
    *,
    white: White = ...,
    keep_known: bool | None = ...,
    noise: float | None = ...,
    strength: float = ...,
    weight: float | None = ...,
    prior: PriorLike = ...,
    gap: float | None = ...,
    return_result: Literal[True],
) -> RestorationResult: ...


def inpaint(
    image: Any,
    mask: AnyImage,
    *,
    white: White = "known",
    keep_known: bool | None = None,
    noise: float | None = None,
    strength: float = 1.0,
    weight: float | None = None,
    prior: PriorLike = "auto",
    gap: float | None = None,
    return_result: bool = False,
) -> Any:
    """Fill in missing pixels of an image, as ``mirrordescent solve inpaint`` does.

    Holes deeper than about eight pixels are filled smoothly; nothing is invented.

    Args:
        image: Image or batch of images; see :func:`denoise`.
        mask: Image of the same size: 1, True or white where a pixel is known.
        white: Meaning of white in the mask: "known", or "missing" as in scikit-image and OpenCV.
        keep_known: Whether known pixels stay as they are. By default they do if there is hardly any
            noise.
        noise: Standard deviation of the noise; see :func:`denoise`.
        strength: Factor of the noise level that is assumed.
        weight: Weight λ of the total variation, in place of noise and strength.
        prior: Prior; see :func:`denoise`.
        gap: Relative gap that must be proven.
        return_result: Whether to return a :class:`RestorationResult`.

    >>> import mirrordescent as md
    >>> photo = md.data.bundled_photographs("test")[0][:, 100:148, 100:148]
    >>> mask = torch.rand(48, 48, generator=torch.Generator().manual_seed(0)) > 0.2
    >>> filled = md.inpaint(photo * mask, mask)
    >>> torch.equal(filled * mask, photo * mask), bool((filled - photo).abs().max() < 0.5)
    (True, True)
    """
    request = Request("inpaint", prior, noise, strength, weight, keep_known)
    return _restore(image, mask, request, gap, return_result, white)


@overload
def deblur(
    image: Kind,
    kernel: AnyImage,
    *,
    noise: float | None = ...,
    strength: float = ...,
    weight: float | None = ...,
    prior: PriorLike = ...,
    gap: float | None = ...,
    return_result: Literal[False] = ...,
) -> Kind: ...


@overload
def deblur(
    image: AnyImage,
    kernel: AnyImage,
    *,
    noise: float | None = ...,
    strength: float = ...,
    weight: float | None = ...,
    prior: PriorLike = ...,
    gap: float | None = ...,
    return_result: Literal[True],
) -> RestorationResult: ...


def deblur(
    image: Any,
    kernel: AnyImage,
    *,
    noise: float | None = None,
    strength: float = 1.0,
    weight: float | None = None,
    prior: PriorLike = "auto",
    gap: float | None = None,
    return_result: bool = False,
) -> Any:
    """Undo a known blur of an image, as ``mirrordescent solve deblur`` does.

    Args:
        image: Image or batch of images; see :func:`denoise`.
        kernel: Kernel of the blur, (height, width), such as
            ``md.problems.gaussian_kernel(1.6)``; it is scaled to sum 1.
        noise: Standard deviation of the noise; see :func:`denoise`.
        strength: Factor of the noise level that is assumed.
        weight: Weight λ of the total variation, in place of noise and strength.
        prior: Prior; see :func:`denoise`.
        gap: Relative gap that must be proven.
        return_result: Whether to return a :class:`RestorationResult`.
    """
    numbers = kernel if isinstance(kernel, Tensor) else pixels_of_any(kernel).colour[0].mean(0)
    degradation = Degradation(as_kernel(numbers.float()))
    request = Request("deblur", prior, noise, strength, weight, degradation=degradation)
    return _restore(image, None, request, gap, return_result)


@overload
def upsample(
    image: Kind,
    factor: int = ...,
    *,
    noise: float | None = ...,
    strength: float = ...,
    weight: float | None = ...,
    prior: PriorLike = ...,
    gap: float | None = ...,
    return_result: Literal[False] = ...,
) -> Kind: ...


@overload
def upsample(
    image: AnyImage,
    factor: int = ...,
    *,
    noise: float | None = ...,
    strength: float = ...,
    weight: float | None = ...,
    prior: PriorLike = ...,
    gap: float | None = ...,
    return_result: Literal[True],
) -> RestorationResult: ...


def upsample(
    image: Any,
    factor: int = 2,
    *,
    noise: float | None = None,
    strength: float = 1.0,
    weight: float | None = None,
    prior: PriorLike = "auto",
    gap: float | None = None,
    return_result: bool = False,
) -> Any:
    """Enlarge an image, as ``mirrordescent solve upsample`` does.

    Args:
        image: Image or batch of images; see :func:`denoise`.
        factor: Ratio of the sides of the enlarged and the given image, from 2 to 8.
        noise: Standard deviation of the noise; see :func:`denoise`.
        strength: Factor of the noise level that is assumed.
        weight: Weight λ of the total variation, in place of noise and strength.
        prior: Prior; see :func:`denoise`.
        gap: Relative gap that must be proven.
        return_result: Whether to return a :class:`RestorationResult`.
    """
    if factor < 2:
        raise ValueError(f"factor must be at least 2, got {factor}")
    degradation = Degradation(factor=factor)
    request = Request("upsample", prior, noise, strength, weight, degradation=degradation)
    return _restore(image, None, request, gap, return_result)


@torch.no_grad()
def _restore(
    image: AnyImage,
    mask: AnyImage | None,
    request: Request,
    gap: float | None,
    return_result: bool,
    white: White = "known",
) -> AnyImage | RestorationResult:
    """Restore an image of any kind."""
    require_prior(request.prior)
    pixels = pixels_of_any(image)
    known = None
    observed = pixels.colour
    if mask is not None:
        given = mask_of_any(mask, observed) if white == "known" else ~_missing(mask, observed)
        known = given
        observed = observed * given
    plan = plan_restoration(request.task, tolerance=gap, isotropic=True)
    results = restore_images(
        observed,
        known,
        request,
        plan,
        compression=[pixels.compression] * len(observed),
        progress=False,
    )
    if not return_result:
        _warn(results, request, plan.tolerance if plan.promised else None)
    restored = pixels.restored(torch.stack([each.x for each in results]))
    return RestorationResult(restored, results) if return_result else restored


def _missing(mask: AnyImage, like: Tensor) -> Tensor:
    """Return the missing pixels of a mask in which white means missing."""
    missing = mask_of_any(mask, like)
    if not bool((~missing).flatten(1).any(1).all()):
        raise ValueError("no pixel is known: the whole mask is white, which means missing")
    return missing


def _warn(results: list[RestoredImage], request: Request, tolerance: float | None) -> None:
    """Warn about a missed tolerance, and about noise that cannot be told from texture."""
    gaps = [each.gap for each in results if not each.kept]
    if tolerance is not None and gaps and max(gaps) > tolerance:
        warnings.warn(
            f"the result is proven to be within {max(gaps):.2g} of the best possible, but "
            f"{tolerance:g} was required: give a larger gap",
            stacklevel=4,
        )
    uncertain = not all(each.certain for each in results)
    if uncertain and request.task == "denoise":
        warnings.warn(
            CANNOT_TELL.replace("--noise", "noise=") + "; it is left as it is", stacklevel=4
        )
