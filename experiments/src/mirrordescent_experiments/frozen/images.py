"""Frozen tasks on images: a ViT, separable convolutions, rows as sequences, batches of 4."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent import data
from mirrordescent.recipes.general_tasks import Training

HELD_OUT = 2000


@lru_cache(maxsize=4)
def images(
    name: str, directory: Path | None, halved: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images (n, 1, height, width) and labels for training, and held-out ones."""
    read = {"mnist": data.mnist, "fashion-mnist": data.fashion_mnist}[name]
    parts: list[Tensor] = []
    for split in ("train", "test"):
        pixels, labels = read(split, directory)
        pixels = data.halve(pixels) if halved else pixels
        count = len(labels) if split == "train" else HELD_OUT
        parts += [pixels.reshape(len(labels), 1, *pixels.shape[-2:])[:count], labels[:count]]
    return parts[0], parts[1], parts[2], parts[3]


def classification(
    model: nn.Module,
    split: tuple[Tensor, Tensor, Tensor, Tensor],
    batch: int,
    seed: int,
    parts: int = 1,
) -> Training:
    """Return the training of a classifier on random minibatches.

    Args:
        model: Classifier.
        split: Images and labels for training, and held-out ones.
        batch: Size of a minibatch.
        seed: Seed of the minibatches.
        parts: Number of parts of a minibatch whose gradients are accumulated.
    """
    inputs, labels, held_out, held_out_labels = split
    generator = torch.Generator().manual_seed(seed)

    def loss(k: int) -> Tensor:
        chosen = torch.randint(len(labels), (batch,), generator=generator)
        losses = [
            F.cross_entropy(model(inputs[part]), labels[part]) for part in chosen.chunk(parts)
        ]
        return torch.stack(losses).mean()

    def validate() -> Tensor:
        with torch.no_grad():
            outputs = torch.cat([model(part) for part in torch.split(held_out, 500)])
            return F.cross_entropy(outputs, held_out_labels)

    return Training(model, loss, validate)


class SelfAttention(nn.Module):
    """Multi-head self-attention with one matrix each for queries, keys, values and outputs."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended values (batch, length, width)."""
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(attended.transpose(1, 2).flatten(2))


class EncoderBlock(nn.Module):
    """A transformer block with norms before attention and the dense layers."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class VisionTransformer(nn.Module):
    """A transformer on patches of 7 × 7 pixels, with a class token and learned positions."""

    def __init__(self, width: int = 64, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(1, width, 7, stride=7)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.blocks = nn.ModuleList([EncoderBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, 10)."""
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], 1) + self.pos_embed
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h[:, 0]))


def vit(seed: int, directory: Path | None) -> Training:
    """A ViT on Fashion-MNIST with batches of 64."""
    return classification(VisionTransformer(), images("fashion-mnist", directory), 64, seed)


def vit_of_batch(batch: int, seed: int, directory: Path | None) -> Training:
    """A ViT on Fashion-MNIST with batches of another size."""
    return classification(VisionTransformer(), images("fashion-mnist", directory), batch, seed)


def vit_of_parts(seed: int, directory: Path | None) -> Training:
    """A ViT on the same batches of 64 as :func:`vit`, with gradients of four parts of 16."""
    return classification(VisionTransformer(), images("fashion-mnist", directory), 64, seed, 4)


class SeparableCNN(nn.Module):
    """Depthwise and pointwise convolutions with batch norms, and the mean over all pixels."""

    def __init__(self, channels: int = 24, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        layers: list[nn.Module] = []
        for _ in range(blocks):
            layers += [
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
                nn.Conv2d(channels, 2 * channels, 1, bias=False),
                nn.MaxPool2d(2),
            ]
            channels *= 2
        self.body = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU())
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, 10)."""
        return self.head(self.body(self.stem(x)).mean((2, 3)))


def separable_cnn(seed: int, directory: Path | None) -> Training:
    """A separable CNN on Fashion-MNIST of 14 × 14 pixels, with batches of 64."""
    split = images("fashion-mnist", directory, halved=True)
    return classification(SeparableCNN(), split, 64, seed)


class RowLSTM(nn.Module):
    """An LSTM over the rows of an image, and a dense layer on its last output."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, 10)."""
        return self.head(self.lstm(x[:, 0])[0][:, -1])


def row_lstm(seed: int, directory: Path | None) -> Training:
    """An LSTM over the rows of MNIST digits, with batches of 50."""
    return classification(RowLSTM(), images("mnist", directory), 50, seed)


def small_batch_cnn(seed: int, directory: Path | None) -> Training:
    """Two convolutions and two dense layers on Fashion-MNIST of 14 × 14 pixels, batches of 4."""
    layers: list[nn.Module] = [
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 25, 64),
        nn.ReLU(),
    ]
    model = nn.Sequential(*layers)
    model.add_module("head", nn.Linear(64, 10))
    return classification(model, images("fashion-mnist", directory, halved=True), 4, seed)
