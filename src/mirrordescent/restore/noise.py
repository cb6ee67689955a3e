"""Estimation of the noise in a photograph from its known pixels."""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from mirrordescent import zoo
from mirrordescent._internal.deprecation import OUTLOOK
from mirrordescent.restore.compression import Compression, standard_compression
from mirrordescent.restore.diagonal_details import level_of_light
from mirrordescent.restore.noise_features import noise_features, smooth_patch_level
from mirrordescent.restore.noise_network import FLOOR, NoiseNetwork
from mirrordescent.restore.patch_covariance import level_of_colours

ENTRY = Path(__file__).parent / "photo-noise.safetensors"
"""File of the learned estimator."""
LARGEST_ERROR = 0.6  # expected error of log σ beyond which the noise counts as unknown
MARGIN = 1.08  # of the level of smooth patches, of which there are few in small images
TEXTURE = 0.02  # noise that texture in grey images may seem to have
USUAL_QUALITY = 90  # of JPEG files whose tables are not known


class Noise(NamedTuple):
    """The noise of a photograph.

    Args:
        level: Standard deviation σ.
        shared: Whether all channels have the same noise.
        certain: Whether noise can be told from texture. If not, σ is a guess.
    """

    level: float
    shared: bool = False
    certain: bool = True


@torch.no_grad()
def estimate_noise(
    y: Tensor,
    mask: Tensor | None = None,
    halved: Sequence[bool] = (),
    *,
    compression: Sequence[Compression | None] = (),
) -> list[Noise]:
    """Estimate the standard deviation σ of the noise of every image.

    Noise has the same energy in all patches and at all frequencies; texture has neither. A small
    network that was learned on photographs estimates σ from low quantiles of the energies of DCT
    coefficients over the patches, and from the quantisation of a JPEG file. It also estimates its
    own error; if that is large, the noise is not ``certain``. In JPEG files, σ is the noise that is
    left after compression.

    If missing pixels leave too few complete patches, σ² is the mean of the small eigenvalues of the
    covariance of patches, computed from pairs of known pixels. In grey images it is the mean square
    of diagonal Haar details where the image is smooth.

    Args:
        y: Images, (batch, channels, height, width), with values from 0 to 1.
        mask: 1 or True at known pixels, broadcastable to y.
        halved: Deprecated; use ``compression``.
        compression: Compression of each image if it comes from a JPEG file, else None; by default
            none does. Arrays that were read from JPEG files by other programs are recognised less
            reliably.

    >>> noise = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    >>> [round(found.level, 2) for found in estimate_noise(0.5 + 0.05 * noise)]
    [0.05, 0.05]
    """
    if halved:
        warnings.warn(
            f"estimate_noise(halved=...) was renamed to compression=...; {OUTLOOK}",
            DeprecationWarning,
            stacklevel=2,
        )
        usual = standard_compression(USUAL_QUALITY)
        compression = [usual if each else None for each in halved]
    masks = [None] * len(y) if mask is None else list(mask.expand_as(y))
    tables = list(compression) or [None] * len(y)
    return [_estimate(*each) for each in zip(y, masks, tables, strict=True)]


def _estimate(image: Tensor, known: Tensor | None, compression: Compression | None) -> Noise:
    image = image.float()
    features = noise_features(image, None if known is None else known[:1], compression)
    shared = compression is not None and compression.halved
    if features is None:
        return _estimate_by_covariance(image, known, shared)
    estimate, error = noise_network().to(image.device)(features.unsqueeze(0))
    level = max(float((2 * estimate).exp()) - FLOOR**2, 0.0) ** 0.5
    if compression is None:  # noise is in every patch, also in the smoothest ones
        level = min(level, MARGIN * smooth_patch_level(features))
    certain = float(error.exp()) <= LARGEST_ERROR
    return Noise(level, shared, certain)


def _estimate_by_covariance(image: Tensor, known: Tensor | None, shared: bool) -> Noise:
    colours = 0.0 if len(image) == 1 else level_of_colours(image, known)
    if len(image) > 1 and not shared:
        return Noise(colours)
    light = level_of_light(image.mean(0), None if known is None else known[0])
    level = max(light, colours)
    return Noise(level, shared, certain=level >= TEXTURE)


@lru_cache(maxsize=1)
def noise_network() -> NoiseNetwork:
    """Return the learned estimator."""
    return cast(NoiseNetwork, zoo.load(ENTRY)).eval()
