"""Features of the digits four and nine, for support vector machines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mirrordescent._internal.cache import key_of, remember
from mirrordescent._internal.suggestions import require_known
from mirrordescent.data.catalogue import DATASETS
from mirrordescent.data.idx import mnist
from mirrordescent.data.pictures import digits
from mirrordescent.data.splits import Split

NEGATIVE = 4
POSITIVE = 9
DIMENSION = 50
Source = Literal["digits", "mnist"]

_EPOCHS = {"digits": 20, "mnist": 1}
_BATCH = 100
_STEP = 2e-3


class Features(NamedTuple):
    """Feature vectors (n, 50) and labels (n,): −1 for a four, +1 for a nine."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


def four_nine_features(
    source: Source = "digits",
    seed: int = 0,
    epochs: int | None = None,
    directory: str | Path | None = None,
) -> Features:
    """Return features of fours and nines from the last hidden layer of a small network.

    The network has five layers, two of them convolutions, and learns to classify all ten digits.
    If it learned only these two, the features would collapse onto a plane. Features are scaled so
    that the training part has mean square 1. They are cached on disk.

    Args:
        source: "digits" (part of scikit-learn, needs no file) or "mnist" (11791 features for
            training, 1991 for testing).
        seed: Seed of the network and its training.
        epochs: Passes over the training part; 20 for "digits" and 1 for "mnist" by default, which
            take seconds.
        directory: Folder of the data sets.
    """
    require_known(source, get_args(Source), "source of digits")
    if epochs is None:
        epochs = _EPOCHS[source]
    checksums = ""
    if source == "mnist":
        checksums = " ".join(file.checksum for file in DATASETS["mnist"].files)
    key = key_of("four nine features", source=source, seed=seed, epochs=epochs, data=checksums)
    return Features(**remember(key, lambda: _compute(source, seed, epochs, directory)))


def _compute(
    source: Source, seed: int, epochs: int, directory: str | Path | None
) -> dict[str, Tensor]:
    def ten_digits(split: Split) -> tuple[Tensor, Tensor]:
        if source == "digits":
            return digits(split, size=28)
        return mnist(split, directory)

    generator = torch.Generator().manual_seed(seed)
    network = _network(generator)
    images, labels = ten_digits("train")
    _train(network, images, labels, epochs, generator)
    train, train_labels = _four_nine(network, images, labels)
    test, test_labels = _four_nine(network, *ten_digits("test"))
    scale = train.square().mean().sqrt()
    return Features(train / scale, train_labels, test / scale, test_labels)._asdict()


@torch.no_grad()
def _four_nine(network: nn.Sequential, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    chosen = (labels == NEGATIVE) | (labels == POSITIVE)
    features = [network[:-1](chunk.unsqueeze(1)) for chunk in torch.split(images[chosen], 1000)]
    return torch.cat(features), torch.where(labels[chosen] == POSITIVE, 1.0, -1.0)


def _network(generator: Generator) -> nn.Sequential:
    """Return a network whose last layer classifies the features; weights ~ U(±1/√fan-in)."""
    with torch.device("meta"):  # nothing is drawn from the global generator
        network = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 7 * 7, 100),
            nn.Tanh(),
            nn.Linear(100, DIMENSION),
            nn.Tanh(),  # unlike with a rectifier, no feature can die
            nn.Linear(DIMENSION, 10),
        )
    for layer in network.to_empty(device="cpu"):
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return network


def _train(
    network: nn.Sequential, images: Tensor, labels: Tensor, epochs: int, generator: Generator
) -> None:
    optimiser = torch.optim.Adam(network.parameters(), lr=_STEP)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(images), generator=generator), _BATCH):
            optimiser.zero_grad()
            loss = F.cross_entropy(network(images[batch].unsqueeze(1)), labels[batch])
            torch.autograd.backward(loss)
            optimiser.step()
