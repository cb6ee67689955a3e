"""Small training tasks of many kinds, to learn and to compare optimisers."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mirrordescent import data, optim
from mirrordescent.methods import Preconditioned
from mirrordescent.mirrors import roles_of
from mirrordescent.recipes.architectures import (
    MLP_WIDTHS,
    dense,
    initialised,
    mlp,
    small_cnn,
    small_resnet,
)

Named: TypeAlias = list[tuple[str, Tensor]]
Make: TypeAlias = Callable[[nn.Module, int], tuple[Optimizer, LRScheduler | None]]
"""A function that returns the optimiser of a model for a number of steps, and its schedule."""
Source: TypeAlias = str
"""Images: ``"digits"``, ``"mnist"`` or ``"fashion-mnist"``, with ``-14`` or ``-28`` for the size.
Texts: ``"numpy"``, ``"stdlib"``.
"""

CHARACTERS = 96  # printable ASCII, the line feed, and one for all others
TEXT = 2_000_000  # characters to read at most


class End(NamedTuple):
    """The end of a training run.

    Mean losses on training and test data, the share of test data classified correctly, and the
    seconds of all steps.
    """

    loss: float
    test_loss: float
    accuracy: float
    seconds: float


@dataclass(frozen=True)
class Task:
    """A network to train.

    Args:
        name: Name of the task.
        model: Function that returns the network.
        source: Source of the data.
        steps: Number of steps.
        batch: Number of examples in a step.
        length: Number of characters of an example, for texts.
        evaluated: Number of examples for the evaluation.
    """

    name: str
    model: Callable[[], nn.Module]
    source: Source
    steps: int
    batch: int
    length: int = 0
    evaluated: int = 2000

    def train(
        self, make: Make, seed: int, directory: Path | None = None, steps: int | None = None
    ) -> End:
        """Train a network; its start and its minibatches are determined by the seed."""
        *_, (_, end) = self.along(make, seed, directory, steps)
        return end

    def along(
        self,
        make: Make,
        seed: int,
        directory: Path | None = None,
        steps: int | None = None,
        every: int | None = None,
    ) -> Iterator[tuple[int, End]]:
        """Train like :meth:`train`, and yield pairs of a step count and the evaluation there.

        The last pair is for the end of the run. If ``every`` is given, there are also pairs for the
        start and for every so many steps. Evaluation does not change the run, and is not timed.
        """
        steps = steps or self.steps
        model = initialised(self.model, seed)
        training = self._data("train", directory)
        test = self._data("test", directory)
        minibatches = self._minibatches(training, torch.Generator().manual_seed(seed))
        fixed = [
            self._examples(part, self.evaluated, torch.Generator().manual_seed(0))
            for part in (training, test)
        ]
        optimiser, scheduler = make(model, steps)
        seconds = 0.0
        for k in range(steps + 1):
            if k == steps or (every and k % every == 0):
                model.eval()
                (loss, _), (test_loss, accuracy) = (
                    _measured(model, *examples) for examples in fixed
                )
                model.train()
                yield k, End(loss, test_loss, accuracy, seconds)
            if k == steps:
                break
            inputs, targets = next(minibatches)
            began = perf_counter()
            optimiser.zero_grad()
            torch.autograd.backward(_loss(model(inputs), targets))
            optimiser.step()
            seconds += perf_counter() - began
            if scheduler is not None:
                scheduler.step()

    def pace(
        self, ours: Make, theirs: Make, directory: Path | None = None, repeats: int = 15
    ) -> float:
        """Return the time of a training step with one optimiser over that with another.

        It is the median of runs taken in turn.
        """
        source = self._data("train", directory)
        generator = torch.Generator().manual_seed(0)
        inputs, targets = self._examples(source, self.batch, generator)

        def trained(make: Make) -> Callable[[], float]:
            model = initialised(self.model, 0)
            optimiser, _ = make(model, 1000)

            def some_steps() -> float:
                began = perf_counter()
                for _ in range(3):
                    optimiser.zero_grad()
                    torch.autograd.backward(_loss(model(inputs), targets))
                    optimiser.step()
                return perf_counter() - began

            some_steps()
            return some_steps

        first = trained(ours)
        second = trained(theirs)
        return median(first() / second() for _ in range(repeats))

    def _data(
        self, split: Literal["train", "test"], directory: Path | None
    ) -> tuple[Tensor, Tensor | None]:
        if self.source in ("numpy", "stdlib"):
            return _text(self.source, split), None
        return _images(self.source, split, directory)

    def _minibatches(
        self, source: tuple[Tensor, Tensor | None], generator: Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield minibatches: images in epochs of random order, texts from random positions."""
        images, labels = source
        while labels is not None:
            order = torch.randperm(len(labels), generator=generator)
            for chosen in torch.split(order[: len(order) // self.batch * self.batch], self.batch):
                yield images[chosen], labels[chosen]
        while True:
            yield self._examples(source, self.batch, generator)

    def _examples(
        self, source: tuple[Tensor, Tensor | None], count: int, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        first, labels = source
        if labels is not None:
            chosen = torch.randperm(len(labels), generator=generator)[:count]  # none of them twice
            return first[chosen], labels[chosen]
        count = min(count, 128)
        starts = torch.randint(len(first) - self.length - 1, (count, 1), generator=generator)
        windows = first[starts + torch.arange(self.length + 1)]
        return windows[:, :-1], windows[:, 1:]


def optimiser_of(
    method: Preconditioned, model: nn.Module, steps: int, lr: float = 1.0
) -> Optimizer:
    """Return the optimiser of a model that takes the steps of a learned method.

    Args:
        method: Learned method, with normalised gradients.
        model: Network to train.
        steps: Number of steps over which the method's schedule is stretched.
        lr: Factor of all step sizes.
    """
    return optim.Preconditioned(
        model.named_parameters(),
        lr,
        method,
        steps=steps,
        roles=roles_of(model),
        nonfinite=None,
    )


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


@torch.no_grad()
def _measured(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
    outputs = torch.cat([model(part) for part in torch.split(inputs, 500)])
    return float(_loss(outputs, targets)), float((outputs.argmax(-1) == targets).float().mean())


@lru_cache(maxsize=16)
def _images(
    source: Source, split: Literal["train", "test"], directory: Path | None
) -> tuple[Tensor, Tensor]:
    """Return images (n, 1, height, width) and labels."""
    whole = source.removesuffix("-14").removesuffix("-28")
    size = source[-3:]
    if whole == "digits":
        images, labels = data.digits(split) if source == "digits" else data.digits(split, size=28)
    else:
        images, labels = (data.mnist if whole == "mnist" else data.fashion_mnist)(split, directory)
    images = data.halve(images) if size == "-14" else images
    return images.reshape(len(images), 1, *images.shape[-2:]), labels


@lru_cache(maxsize=4)
def _text(source: Source, split: Literal["train", "test"]) -> Tensor:
    """Return the source code of Python's standard library or of NumPy, as character numbers.

    The first nine tenths are for training, and the last tenth is for testing.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))
    if source == "numpy":
        import numpy

        files = sorted(Path(numpy.__file__).parent.glob("lib/*.py"))
    text = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in files)[:TEXT]
    codes = torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8).long()
    numbers = torch.where(codes == 10, 0, codes - 31).clamp(0, CHARACTERS - 1)
    cut = 9 * len(numbers) // 10
    return numbers[:cut] if split == "train" else numbers[cut:]


class Block(nn.Module):
    """A transformer block: x + A(N(x)), then x + M(N(x)), with attention A, dense M and norms N."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.dense = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block for x (batch, length, width)."""
        normed = self.first(x)
        q, k, v = (
            layer(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = (
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )
        x = x + self.out(attended)
        return x + self.dense(self.second(x))


class Transformer(nn.Module):
    """A language model of characters.

    It has embeddings of characters and positions, blocks, a norm and a dense layer.
    """

    def __init__(self, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, width)
        self.position_embedding = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of the next character at every position: (batch, length, characters)."""
        h = self.embedding(x) + self.position_embedding[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Recurrent(nn.Module):
    """A language model of characters: an embedding, an LSTM or a GRU, and a dense layer."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], embedded: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, embedded)
        self.recurrent = kind(embedded, hidden, batch_first=True)
        self.head = nn.Linear(hidden, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of the next character at every position."""
        return self.head(self.recurrent(self.embedding(x))[0])


def flat(widths: tuple[int, ...]) -> nn.Sequential:
    """Return a dense network on flattened images."""
    return nn.Sequential(nn.Flatten(), *dense(widths))


def normed(widths: tuple[int, ...]) -> nn.Sequential:
    """Return a dense network with layer norms and GELUs between its layers."""
    layers: list[nn.Module] = [nn.Flatten()]
    for incoming, outgoing in pairwise(widths[:-1]):
        layers += [nn.Linear(incoming, outgoing), nn.LayerNorm(outgoing), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def grouped_cnn(channels: int, side: int) -> nn.Sequential:
    """Two convolutions with group norms and ReLUs, the second of stride 2, and a dense layer."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.GroupNorm(2, channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1, stride=2),
        nn.GroupNorm(2, 2 * channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * channels * (-(-(side // 2) // 2)) ** 2, 10),
    )


def plain_cnn(channels: int, kernel: int, side: int) -> nn.Sequential:
    """One convolution, max-pooling, a ReLU and a dense layer."""
    pooled = (side - kernel + 1) // 2
    layers = nn.Conv2d(1, channels, kernel), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(channels * pooled**2, 10))


LEARNING: tuple[Task, ...] = (
    Task("digits MLP", partial(flat, (64, 48, 32, 10)), "digits", 100, 64),
    Task("MNIST MLP", partial(flat, (196, 100, 50, 10)), "mnist-14", 100, 128),
    Task("6-layer MLP", partial(flat, (196, 40, 40, 40, 40, 40, 10)), "mnist-14", 150, 64),
    Task("MLP for longer", partial(flat, (196, 48, 48, 10)), "mnist-14", 400, 100),
    Task("CNN with group norm", partial(grouped_cnn, 8, 14), "mnist-14", 80, 64),
    Task("plain CNN", partial(plain_cnn, 6, 5, 14), "mnist-14", 120, 200),
    Task("plain CNN with large batches", partial(plain_cnn, 10, 3, 14), "mnist-14", 100, 500),
    Task("residual network on digits", partial(small_resnet, 8), "digits", 80, 64),
    Task("small transformer", partial(Transformer, 32, 1, 2, 32), "numpy", 120, 16, 32),
    Task("transformer for longer", partial(Transformer, 48, 3, 4, 32), "numpy", 360, 12, 32),
    Task("GRU", partial(Recurrent, nn.GRU, 16, 48), "numpy", 80, 16, 24),
)
VALIDATION: tuple[Task, ...] = (
    Task("wide MLP", partial(flat, (196, 256, 10)), "mnist-14", 120, 64),
    Task("narrow 8-layer MLP", partial(flat, (196, *[24] * 7, 10)), "mnist-14", 200, 64),
    Task("5-layer MLP for longer", partial(flat, (196, 64, 48, 32, 24, 10)), "mnist-14", 400, 200),
    Task("wider CNN", partial(grouped_cnn, 16, 14), "mnist-14", 80, 64),
    Task("wider plain CNN", partial(plain_cnn, 12, 5, 14), "mnist-14", 100, 300),
    Task("narrow transformer for longer", partial(Transformer, 40, 2, 4, 48), "numpy", 450, 12, 48),
    Task("transformer of two layers", partial(Transformer, 48, 2, 4, 32), "numpy", 120, 12, 32),
)
TEST: tuple[Task, ...] = (
    Task("10 times wider MLP", partial(flat, (784, 500, 400, 300, 200, 10)), "mnist", 40, 256),
    Task("11-layer MLP", partial(flat, (784, *[64] * 10, 10)), "mnist", 200, 128),
    Task("MLP, Fashion-MNIST", partial(flat, MLP_WIDTHS), "fashion-mnist", 250, 128),
    Task("CNN, Fashion-MNIST", small_cnn, "fashion-mnist-14", 200, 128),
    Task("residual network", partial(small_resnet, 16), "fashion-mnist", 80, 64),
    Task(
        "MLP with layer norms", partial(normed, (784, 128, 128, 128, 10)), "fashion-mnist", 200, 128
    ),
    Task("transformer", partial(Transformer, 64, 2, 4, 64), "stdlib", 150, 16, 64),
    Task("LSTM", partial(Recurrent, nn.LSTM, 32, 96), "stdlib", 150, 16, 48),
)
PROJECT: tuple[Task, ...] = (
    Task("MLP", mlp, "mnist", 360, 500, evaluated=10_000),
    Task("CNN", small_cnn, "mnist-14", 120, 1000, evaluated=10_000),
)
