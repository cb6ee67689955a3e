"""Features of a photograph from which its noise is estimated."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent._internal.dct import dct
from mirrordescent.restore.compression import Compression

SIDE = 8  # of patches, in pixels, as in JPEG files
# Bands of frequencies i + j of a patch, from the lowest to the highest.
BANDS = ((1, 1), (2, 2), (3, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, 14))
LOW_BANDS = 4  # bands by which patches are called smooth
SMOOTHEST = 0.2  # share of the patches
QUANTILES = (0.02, 0.1, 0.25, 0.5)
PLANES = 3
MOST_PATCHES = 6000  # limits the time for large images
FEWEST_PATCHES = 12
SMALLEST = 1e-7  # energy that is added to all energies, less than that of rounding to bytes
# Brightness and colours of JPEG files, scaled so that white noise keeps its standard deviation.
YCBCR = (
    (0.299, 0.587, 0.114),
    (-0.168736, -0.331264, 0.5),
    (0.5, -0.418688, -0.081312),
)
WHITE = 0.7  # ratio of the levels of the highest and of lower frequencies
PER_PLANE = len(BANDS) * (len(QUANTILES) + 1)
COUNT = PLANES * PER_PLANE + 2 * len(BANDS) + 2
"""Number of features."""


def noise_features(
    image: Tensor, known: Tensor | None = None, compression: Compression | None = None
) -> Tensor | None:
    """Return features that tell noise from texture.

    The image is split into brightness and two colours, and each into patches of 8×8 pixels, those
    of the JPEG file if it comes from one. The energies of a patch are the mean squares of its DCT
    coefficients in eight bands. For every plane and band, the features are

    - the logarithm of low quantiles of the energy over all patches, and of its mean over the fifth
      of the patches that is smoothest in the low bands: texture varies over a photograph, and
      noise does not;
    - the logarithm of the quantisation steps of a JPEG file.

    They are followed by the logarithm of the number of patches and the resolution of the colours.
    Features that an image does not have are NaN.

    Args:
        image: Image (channels, height, width) in [0, 1].
        known: True at known pixels, (1, height, width); patches with a missing pixel are left out.
        compression: Compression of the file, or None if it is not known.

    Returns:
        The features, (COUNT,), or None if there are too few patches.
    """
    energies = _energies(image, known, compression)
    if energies is None:
        return None
    features = image.new_full((COUNT,), math.nan)
    for plane, energy in enumerate(energies):
        start = plane * PER_PLANE
        features[start : start + PER_PLANE] = _plane_features(energy)
    start = PLANES * PER_PLANE
    if compression is not None:
        tables = (compression.luma, compression.chroma)
        for table in tables[: 1 if len(image) == 1 else 2]:
            steps = torch.tensor(table, dtype=image.dtype, device=image.device).log()
            features[start : start + len(BANDS)] = torch.stack(
                [steps[band].mean() for band in _bands(image.device)]
            )
            start += len(BANDS)
        features[-1] = math.log(compression.down * compression.across)
    features[-2] = math.log(energies[0].shape[1])
    return features


def smooth_patch_level(features: Tensor) -> float:
    """Return an upper estimate of the noise: the level of high frequencies in smooth patches.

    It is infinite if the highest frequencies are weaker than those below, as after a compression or
    an enlargement that has removed their noise.

    Args:
        features: Features of :func:`noise_features`.
    """
    per_band = features[: PLANES * PER_PLANE].reshape(PLANES, len(BANDS), -1)
    levels = per_band[:, LOW_BANDS:, -1].exp()  # NaN for planes that an image does not have
    planes = levels[~levels.isnan().any(1)]
    white = planes[planes[:, -1] >= WHITE * planes[:, 0]]
    return float(white.min()) if len(white) else math.inf


def _energies(
    image: Tensor, known: Tensor | None, compression: Compression | None
) -> list[Tensor] | None:
    """Return the energies (bands, patches) of every plane, or None if there are too few patches."""
    energies = []
    for index, plane in enumerate(_planes(image, compression)):
        kept = known
        if known is not None and index and compression is not None:
            pooled = F.avg_pool2d(known.to(image), (compression.down, compression.across))
            kept = pooled == 1
        energy = _plane_energies(plane, kept, compression is not None)
        if energy is None and index == 0:
            return None
        if energy is None:
            break
        energies.append(energy)
    return energies


def _planes(image: Tensor, compression: Compression | None) -> list[Tensor]:
    """Return brightness and colours, (height, width) each; colours as stored in a JPEG file."""
    if len(image) != PLANES:
        return [image.mean(0)]
    matrix = torch.tensor(YCBCR, dtype=image.dtype, device=image.device)
    matrix = matrix / matrix.square().sum(1, keepdim=True).sqrt()
    y, *colours = torch.einsum("ij,jhw->ihw", matrix, image)
    if compression is not None and compression.halved:
        ratio = (compression.down, compression.across)
        colours = [F.avg_pool2d(plane.unsqueeze(0), ratio)[0] for plane in colours]
    return [y, *colours]


def _plane_energies(plane: Tensor, known: Tensor | None, aligned: bool) -> Tensor | None:
    """Return the mean squares (bands, patches) of DCT coefficients of complete patches."""
    height, width = plane.shape
    if min(height, width) < SIDE:
        return None
    stride = max(1, int((height * width / MOST_PATCHES) ** 0.5))
    if aligned:
        stride = SIDE * max(1, stride // SIDE)
    patches = F.unfold(plane[None, None], SIDE, stride=stride)[0]
    if known is not None:
        whole = F.unfold(known.to(plane).unsqueeze(0), SIDE, stride=stride)[0].amin(0) == 1
        patches = patches[:, whole]
    if patches.shape[1] < FEWEST_PATCHES:
        return None
    basis = dct(SIDE, SIDE, plane.dtype, plane.device)
    squares = (torch.kron(basis, basis) @ patches).square()
    return torch.stack([squares[band].mean(0) for band in _bands(plane.device)])


def _plane_features(energy: Tensor) -> Tensor:
    quantiles = energy.quantile(energy.new_tensor(QUANTILES), dim=1).T
    count = max(1, int(SMOOTHEST * energy.shape[1]))
    smooth = energy[:LOW_BANDS].mean(0).topk(count, largest=False).indices
    means = energy[:, smooth].mean(1, keepdim=True)
    return (torch.cat([quantiles, means], 1) + SMALLEST).log().flatten() / 2


def _bands(device: torch.device) -> list[Tensor]:
    """Return the indices of the coefficients of every band."""
    i = torch.arange(SIDE, device=device)
    order = (i[:, None] + i).flatten()
    return [((order >= low) & (order <= high)).nonzero()[:, 0] for low, high in BANDS]
