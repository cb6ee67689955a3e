"""Frozen tasks on the text of Python's standard library."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent.recipes.general_tasks import Training
from mirrordescent_experiments.frozen.images import EncoderBlock, SelfAttention

CHARACTERS = 96
WORDS = 4096
LONGEST = 4_000_000  # characters to read at most


@lru_cache(maxsize=8)
def source_text(pattern: str = "*.py") -> str:
    """Return the sources of the standard library whose paths match a pattern."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = [p for p in sorted(folder.glob(pattern)) if "site-packages" not in p.parts]
    return "".join(p.read_text(encoding="utf-8", errors="ignore") for p in files)[:LONGEST]


@lru_cache(maxsize=8)
def characters(pattern: str = "*.py") -> Tensor:
    """Return sources as numbers of characters: printable ASCII, the line feed, and others."""
    codes = torch.frombuffer(
        bytearray(source_text(pattern).encode("ascii", "replace")), dtype=torch.uint8
    ).long()
    return torch.where(codes == 10, 0, codes - 31).clamp(0, CHARACTERS - 1)


@lru_cache(maxsize=2)
def words() -> Tensor:
    """Return sources as numbers of words, punctuation included; 0 is any rare word."""
    found = re.findall(r"\w+|[^\w\s]|\n", source_text())
    common = Counter(found).most_common(WORDS - 1)
    number = {word: i + 1 for i, (word, _) in enumerate(common)}
    return torch.tensor([number.get(word, 0) for word in found])


def language_training(
    model: nn.Module, text: Tensor, batch: int, length: int, seed: int
) -> Training:
    """Return the training of a model of the next symbol, on the first nine tenths of a text."""
    cut = 9 * len(text) // 10
    generator = torch.Generator().manual_seed(seed)

    def windows(part: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(part) - length - 1, (count, 1), generator=generator)
        chosen = part[starts + torch.arange(length + 1)]
        return chosen[:, :-1], chosen[:, 1:]

    def cross_entropy(inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def loss(k: int) -> Tensor:
        return cross_entropy(*windows(text[:cut], batch, generator))

    def validate() -> Tensor:
        with torch.no_grad():
            inputs, targets = windows(text[cut:], 128, torch.Generator().manual_seed(0))
            return torch.stack(
                [
                    cross_entropy(x, y)
                    for x, y in zip(torch.split(inputs, 16), torch.split(targets, 16), strict=True)
                ]
            ).mean()

    return Training(model, loss, validate)


class Experts(nn.Module):
    """Eight dense networks stacked in two tensors (experts, d, h); each token uses the best two."""

    def __init__(self, width: int, hidden: int, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, hidden).uniform_(-1, 1) / width**0.5)
        self.down = nn.Parameter(torch.empty(experts, hidden, width).uniform_(-1, 1) / hidden**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted outputs of the two experts of each token."""
        weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        gates = torch.zeros(*x.shape[:-1], len(self.up)).scatter(-1, chosen, weights)
        hidden = F.gelu(torch.einsum("bld,edh->bleh", x, self.up))
        return torch.einsum("bleh,ehd,ble->bld", hidden, self.down, gates)


class ExpertBlock(nn.Module):
    """A transformer block with experts in place of the dense layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads, causal=True)
        self.norm2 = nn.LayerNorm(width)
        self.experts = Experts(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        x = x + self.attn(self.norm1(x))
        return x + self.experts(self.norm2(x))


class LanguageModel(nn.Module):
    """Embeddings of symbols and positions, blocks, a norm, and logits of the next symbol."""

    def __init__(
        self, symbols: int, width: int, length: int, blocks: list[nn.Module], tied: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        if tied:
            nn.init.normal_(self.embedding.weight, std=0.02)
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, length, symbols)."""
        h = self.embedding(x) + self.pos_embed[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def mixture_of_experts(seed: int, directory: Path | None) -> Training:
    """A model of characters, width 64, two blocks with eight experts each; batches of 16 × 64."""
    blocks: list[nn.Module] = [ExpertBlock(64, 4) for _ in range(2)]
    model = LanguageModel(CHARACTERS, 64, 64, blocks, tied=False)
    return language_training(model, characters(), 16, 64, seed)


def tied_gpt(seed: int, directory: Path | None) -> Training:
    """A model of 4096 words, width 128, four blocks, tied embedding; batches of 8 × 64."""
    blocks: list[nn.Module] = [EncoderBlock(128, 4, causal=True) for _ in range(4)]
    model = LanguageModel(WORDS, 128, 64, blocks, tied=True)
    return language_training(model, words(), 8, 64, seed)


class SkipGram(nn.Module):
    """Embeddings of words and of contexts, scored by inner products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inputs = nn.Embedding(WORDS, width)
        self.contexts = nn.Embedding(WORDS, width)
        with torch.no_grad():
            self.inputs.weight.uniform_(-0.5 / width, 0.5 / width)
            self.contexts.weight.zero_()

    def forward(self, centres: Tensor, contexts: Tensor) -> Tensor:
        """Return the scores (batch, candidates) of contexts (batch, candidates)."""
        return (self.contexts(contexts) * self.inputs(centres)[:, None]).sum(-1)


def skip_gram(seed: int, directory: Path | None) -> Training:
    """Skip-gram with five negative samples, 64 numbers a word, batches of 512 pairs."""
    model = SkipGram(64)
    text = words()
    cut = 9 * len(text) // 10
    generator = torch.Generator().manual_seed(seed)

    def scored(part: Tensor, count: int, generator: torch.Generator) -> Tensor:
        at = torch.randint(4, len(part) - 4, (count,), generator=generator)
        shift = torch.randint(1, 5, (count,), generator=generator)
        sign = 2 * torch.randint(0, 2, (count,), generator=generator) - 1
        noise = text[torch.randint(len(text), (count, 5), generator=generator)]
        contexts = torch.cat([part[at + sign * shift][:, None], noise], 1)
        scores = model(part[at], contexts)
        return -(F.logsigmoid(scores[:, 0]) + F.logsigmoid(-scores[:, 1:]).sum(1)).mean()

    def validate() -> Tensor:
        with torch.no_grad():
            return scored(text[cut:], 20_000, torch.Generator().manual_seed(0))

    return Training(model, lambda k: scored(text[:cut], 512, generator), validate)
