"""How the estimator of noise was learned: ``python -m mirrordescent.recipes.noise_estimator``.

Squares of photographs get white noise; some are then compressed to JPEG. The network learns to tell
the noise from :func:`~mirrordescent.restore.noise_features.noise_features`.
"""

from __future__ import annotations

import io
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Generator, Tensor
from torch.nn import functional as F

from mirrordescent import zoo
from mirrordescent._internal.progress import ProgressBar
from mirrordescent.data import bsds500
from mirrordescent.restore.compression import Compression, compression_of
from mirrordescent.restore.noise import ENTRY
from mirrordescent.restore.noise_features import noise_features
from mirrordescent.restore.noise_network import FLOOR, NoiseNetwork
from mirrordescent.zoo import Card

GREY = (0.299, 0.587, 0.114)  # weights of the colours in a grey photograph


class NoisyCase(NamedTuple):
    """A photograph with noise.

    Args:
        image: The photograph, (channels, height, width).
        noise: Root mean square of its difference from the photograph without noise, compressed in
            the same way.
        compression: Compression of the file, or None if there is none or it is not known.
    """

    image: Tensor
    noise: float
    compression: Compression | None = None


@dataclass(frozen=True)
class CaseDistribution:
    """Random noisy photographs.

    Args:
        sides: Sides of the squares, in pixels.
        least: Least noise; its logarithm is uniformly distributed.
        most: Largest noise.
        clean: Share of photographs without noise.
        grey: Share of grey photographs.
        compressed: Share of photographs that were compressed to JPEG.
        hidden: Share of compressed photographs whose tables are not known.
        shrunk: Share of photographs that are made smaller first, which removes traces of the
            compression of the original.
        rounded: Share of the other photographs that are rounded to bytes.
        qualities: Least and largest quality of JPEG.
    """

    sides: tuple[int, ...] = (48, 64, 80, 96, 128, 160, 224, 320)
    least: float = 0.003
    most: float = 0.25
    clean: float = 0.2
    grey: float = 0.5
    compressed: float = 0.6
    hidden: float = 0.15
    shrunk: float = 0.4
    rounded: float = 0.7
    qualities: tuple[int, int] = (57, 97)

    def draw(
        self, photographs: Sequence[Tensor], chance: random.Random, generator: Generator
    ) -> NoisyCase:
        """Draw a noisy photograph.

        Args:
            photographs: Photographs without noise, (3, height, width) each.
            chance: Source of all random decisions.
            generator: Source of the noise.
        """
        photo = chance.choice(photographs)
        if chance.random() < self.shrunk:
            photo = _shrink(photo, chance.uniform(0.45, 0.9))
        largest = min(photo.shape[1:])
        side = chance.choice([side for side in self.sides if side <= largest])
        top = chance.randrange(photo.shape[1] - side + 1)
        left = chance.randrange(photo.shape[2] - side + 1)
        clean = photo[:, top : top + side, left : left + side]
        if chance.random() < self.grey:
            clean = to_grey(clean)
        sigma = math.exp(chance.uniform(math.log(self.least), math.log(self.most)))
        if chance.random() < self.clean:
            sigma = 0.0
        if chance.random() < self.compressed:
            quality = chance.randint(*self.qualities)
            subsampling = chance.choice((0, 1, 2, 2))
            case = compressed_case(clean, sigma, quality, subsampling, generator)
            return case._replace(compression=None) if chance.random() < self.hidden else case
        return plain_case(clean, sigma, generator, rounded=chance.random() < self.rounded)


def to_grey(image: Tensor) -> Tensor:
    """Return the brightness of an image, rounded to bytes, (1, height, width)."""
    weights = torch.tensor(GREY)[:, None, None]
    return ((weights * image).sum(0, keepdim=True) * 255).round() / 255


def plain_case(
    clean: Tensor, sigma: float, generator: Generator, *, rounded: bool = True
) -> NoisyCase:
    """Add noise to a photograph that is not compressed.

    Args:
        clean: The photograph, (channels, height, width).
        sigma: Standard deviation of the noise.
        generator: Source of the noise.
        rounded: Whether to clip to [0, 1] and to round to bytes.
    """
    noisy = clean + sigma * torch.randn(clean.shape, generator=generator)
    if rounded:
        noisy = (noisy.clamp(0, 1) * 255).round() / 255
    return NoisyCase(noisy, _distance(noisy, clean) if sigma else 0.0)


def compressed_case(
    clean: Tensor, sigma: float, quality: int, subsampling: int, generator: Generator
) -> NoisyCase:
    """Add noise to a photograph and compress it to JPEG.

    Args:
        clean: The photograph, (channels, height, width).
        sigma: Standard deviation of the noise.
        quality: Quality of JPEG.
        subsampling: 0, 1 or 2 for 4:4:4, 4:2:2 or 4:2:0.
        generator: Source of the noise.
    """
    noisy = clean + sigma * torch.randn(clean.shape, generator=generator)
    image, compression = _compress(noisy, quality, subsampling)
    reference, _ = _compress(clean, quality, subsampling)
    return NoisyCase(image, _distance(image, reference), compression)


def learn_noise_network(
    cases: int = 20_000, seed: int = 0, epochs: int = 120, width: int = 32
) -> NoiseNetwork:
    """Learn the network on the training photographs of BSDS500.

    Args:
        cases: Number of noisy photographs.
        seed: Seed of the photographs and of the network.
        epochs: Number of passes over the photographs.
        width: Number of units of a hidden layer.
    """
    features, noises = _examples(cases, seed)
    torch.manual_seed(seed)
    network = NoiseNetwork(width)
    network.standardise(features)
    targets = (noises.square() + FLOOR**2).sqrt().log()
    batch = 128
    steps = len(features) // batch
    optimiser = torch.optim.AdamW(network.parameters(), 4e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=epochs * steps)
    with ProgressBar("learning", epochs, None) as bar:
        for epoch in range(epochs):
            for chosen in torch.randperm(len(features))[: steps * batch].reshape(steps, batch):
                estimate, error = network(features[chosen])
                distance = (estimate - targets[chosen]).abs()
                loss = (error + distance * (-error).exp()).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
            bar.update(epoch + 1, f"loss {loss.item():.3f}")
    return network.requires_grad_(False)


def _examples(cases: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the features and the noise of random photographs."""
    photographs = bsds500("train")
    chance = random.Random(seed)
    generator = Generator().manual_seed(seed)
    distribution = CaseDistribution()
    features: list[Tensor] = []
    noises: list[float] = []
    with ProgressBar("photographs", cases, None) as bar:
        while len(features) < cases:
            case = distribution.draw(photographs, chance, generator)
            found = noise_features(case.image, None, case.compression)
            if found is not None:
                features.append(found)
                noises.append(case.noise)
                bar.update(len(features), "")
    return torch.stack(features), torch.tensor(noises)


def _shrink(photo: Tensor, factor: float) -> Tensor:
    size = [round(factor * length) for length in photo.shape[1:]]
    smaller = F.interpolate(photo[None], size, mode="bicubic", antialias=True)[0]
    return (smaller.clamp(0, 1) * 255).round() / 255


def _compress(image: Tensor, quality: int, subsampling: int) -> tuple[Tensor, Compression]:
    """Return an image after compression, with its tables."""
    pixels = (image.clamp(0, 1) * 255).round().byte().movedim(0, -1).numpy()
    picture = Image.fromarray(pixels[:, :, 0] if len(image) == 1 else pixels)
    file = io.BytesIO()
    picture.save(file, "jpeg", quality=quality, subsampling=subsampling)
    with Image.open(file) as stored:
        compression = compression_of(stored)
        numbers = np.array(stored, np.float32) / np.float32(255)
    assert compression is not None
    return torch.from_numpy(numbers).reshape(*image.shape[1:], -1).movedim(-1, 0), compression


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).square().mean().sqrt())


def main() -> None:
    """Learn the network and write it to the package."""
    torch.set_num_threads(1)
    network = learn_noise_network(*map(int, sys.argv[1:]))
    card = Card(
        ENTRY.stem,
        "estimates the noise of a photograph, and says how certain the estimate is",
        family="white noise of 0 to 0.25 in squares of 48 to 320 pixels, grey and colour, "
        "plain or compressed to JPEG of quality 57 to 97 with and without halved colours",
        data="BSDS500, training part (non-commercial research and education)",
        parameters=sum(each.numel() for each in network.parameters()),
    )
    print(zoo.save(network, ENTRY, card))


if __name__ == "__main__":
    main()
