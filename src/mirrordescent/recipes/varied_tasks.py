"""Small training tasks beyond training from scratch with medium batches.

Fine-tuning, sine networks, few labels on graphs, batches of 4, residuals of equations, tied
embeddings, recommenders, and long runs. Each takes a few seconds. They are judged by losses on
held-out data.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mirrordescent import data
from mirrordescent.recipes.architectures import dense
from mirrordescent.recipes.general_tasks import GeneralTask, Training
from mirrordescent.recipes.training_tasks import Block, Transformer, flat, plain_cnn

Examples = tuple[Tensor, Tensor]


@lru_cache(maxsize=4)
def _digits(directory: Path | None) -> tuple[Examples, Examples]:
    """Return MNIST digits of 14 × 14 pixels with their labels, for training and held out."""
    pairs = []
    for split in ("train", "test"):
        pixels, labels = data.mnist(split, directory)
        pixels = data.halve(pixels).reshape(len(labels), 1, 14, 14)
        pairs.append((pixels[:20_000], labels[:20_000]))
    (inputs, labels), (held_out, held_out_labels) = pairs
    return (inputs, labels), (held_out[:1500], held_out_labels[:1500])


def _classification(
    model: nn.Module, training: Examples, held_out: Examples, batch: int, seed: int
) -> Training:
    inputs, labels = training
    generator = Generator().manual_seed(seed)

    def loss(k: int) -> Tensor:
        chosen = torch.randint(len(labels), (batch,), generator=generator)
        return F.cross_entropy(model(inputs[chosen]), labels[chosen])

    @torch.no_grad()
    def validate() -> Tensor:
        return F.cross_entropy(model(held_out[0]), held_out[1])

    return Training(model, loss, validate)


def classifier(
    make: Callable[[], nn.Module], batch: int, examples: int, seed: int, directory: Path | None
) -> Training:
    """A classifier of MNIST digits, of which the first ``examples`` are known."""
    (inputs, labels), held_out = _digits(directory)
    return _classification(make(), (inputs[:examples], labels[:examples]), held_out, batch, seed)


def _pretrain(training: Training, steps: int, rate: float) -> nn.Module:
    """Train with AdamW and a falling learning rate, and return the model."""
    optimiser = torch.optim.AdamW(training.model.parameters(), rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for k in range(steps):
        optimiser.zero_grad()
        torch.autograd.backward(training.loss(k))
        optimiser.step()
        scheduler.step()
    return training.model


@lru_cache(maxsize=8)
def _pretrained_classifier(
    make: Callable[[], nn.Module], seed: int, directory: Path | None
) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _pretrain(classifier(make, 64, 20_000, seed, directory), 400, 3e-3)


def fine_tuned_classifier(
    make: Callable[[], nn.Module], seed: int, directory: Path | None
) -> Training:
    """A classifier of digits gets a new output layer, for 300 digits mirrored and inverted."""
    model = copy.deepcopy(_pretrained_classifier(make, seed % 2, directory))
    assert isinstance(model, nn.Sequential)
    last = model[-1]
    assert isinstance(last, nn.Linear)
    model[-1] = nn.Linear(last.in_features, 10)
    (inputs, labels), (held_out, held_out_labels) = _digits(directory)
    changed = (1 - inputs[:300].flip(-1), labels[:300])
    return _classification(model, changed, (1 - held_out.flip(-1), held_out_labels), 16, seed)


@lru_cache(maxsize=4)
def _numpy_text(pattern: str) -> str:
    import numpy

    files = sorted(Path(numpy.__file__).parent.glob(pattern))
    return "".join(p.read_text(encoding="utf-8", errors="ignore") for p in files)[:1_500_000]


@lru_cache(maxsize=4)
def _characters(pattern: str) -> Tensor:
    encoded = bytearray(_numpy_text(pattern).encode("ascii", "replace"))
    codes = torch.frombuffer(encoded, dtype=torch.uint8).long()
    return torch.where(codes == 10, 0, codes - 31).clamp(0, 95)


@lru_cache(maxsize=4)
def _words(count: int) -> Tensor:
    """Return the words of NumPy's sources as numbers; 0 is any rare word."""
    found = re.findall(r"\w+|[^\w\s]|\n", _numpy_text("lib/*.py"))
    common = Counter(found).most_common(count - 1)
    number = {word: i + 1 for i, (word, _) in enumerate(common)}
    return torch.tensor([number.get(word, 0) for word in found])


def _language(model: nn.Module, text: Tensor, batch: int, length: int, seed: int) -> Training:
    cut = 9 * len(text) // 10
    generator = Generator().manual_seed(seed)

    def cross_entropy(part: Tensor, count: int, generator: Generator) -> Tensor:
        starts = torch.randint(len(part) - length - 1, (count, 1), generator=generator)
        windows = part[starts + torch.arange(length + 1)]
        return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    @torch.no_grad()
    def validate() -> Tensor:
        return cross_entropy(text[cut:], 64, Generator().manual_seed(0))

    return Training(model, lambda k: cross_entropy(text[:cut], batch, generator), validate)


@lru_cache(maxsize=4)
def _pretrained_transformer(width: int, depth: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer(width, depth, 4, 32)
        return _pretrain(_language(model, _characters("lib/*.py"), 16, 32, 0), 500, 3e-3)


def fine_tuned_transformer(width: int, depth: int, seed: int, directory: Path | None) -> Training:
    """A model of characters of NumPy's library is trained on NumPy's tests of masked arrays."""
    model = copy.deepcopy(_pretrained_transformer(width, depth))
    return _language(model, _characters("ma/**/*.py"), 8, 32, seed)


class _TiedTransformer(nn.Module):
    """A model of words whose output layer is its embedding."""

    def __init__(self, symbols: int, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.position_embedding = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.position_embedding[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def tied_transformer(
    symbols: int, width: int, depth: int, batch: int, seed: int, directory: Path | None
) -> Training:
    """A model of the words of NumPy's sources with a tied embedding."""
    model = _TiedTransformer(symbols, width, depth, 32)
    return _language(model, _words(symbols), batch, 32, seed)


class PatchTransformer(nn.Module):
    """A transformer on overlapping patches of 4 × 4 pixels of small digits, with a class token."""

    def __init__(self, width: int = 48, depth: int = 2) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(1, width, 4, stride=2)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 37, width))
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, 10)."""
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        h = torch.cat([patches, self.cls_token.expand(len(x), -1, -1)], 1) + self.pos_embed
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h[:, -1]))


class _Sines(nn.Module):
    """Sine layers sin(ω(Wx + b)) with the initialisation of SIREN, and a dense layer."""

    def __init__(self, width: int, depth: int, frequency: float) -> None:
        super().__init__()
        self.frequency = frequency
        first = nn.Linear(2, width)
        hidden = [nn.Linear(width, width) for _ in range(depth - 1)]
        self.layers = nn.ModuleList([first, *hidden])
        self.output = nn.Linear(width, 1)
        bound = math.sqrt(6 / width) / frequency
        nn.init.uniform_(first.weight, -1 / 2, 1 / 2)
        for layer in (*hidden, self.output):
            nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(self.frequency * layer(x))
        return self.output(x)[:, 0]


def sines(width: int, depth: int, frequency: float, seed: int, directory: Path | None) -> Training:
    """A sine network on half of the pixels of a digit, enlarged and smoothed."""
    (inputs, _), _ = _digits(directory)
    picture = F.interpolate(inputs[seed % 1000][None], size=(40, 40), mode="bicubic")[0, 0]
    side = torch.linspace(-1, 1, 40)
    points = torch.cartesian_prod(side, side)
    values = (picture.flatten() - picture.mean()) / picture.std()
    known = torch.arange(1600) % 2 == 0
    model = _Sines(width, depth, frequency)

    def loss(k: int) -> Tensor:
        return (model(points[known]) - values[known]).square().mean()

    @torch.no_grad()
    def validate() -> Tensor:
        return (model(points[~known]) - values[~known]).square().mean()

    return Training(model, loss, validate)


class _GraphNetwork(nn.Module):
    """Graph convolutions x ← A x Wᵀ with ReLUs and dropout."""

    def __init__(self, widths: tuple[int, ...], adjacency: Tensor, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(widths)])
        self.adjacency = adjacency
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            if i:
                x = F.dropout(F.relu(x), self.dropout, self.training)
            x = self.adjacency @ layer(x)
        return x


@lru_cache(maxsize=2)
def _graph(nodes: int, directory: Path | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return pixels, labels, and the normalised adjacency of nearest neighbours."""
    (inputs, labels), _ = _digits(directory)
    x = inputs[-nodes:].flatten(1)
    nearest = torch.cdist(x, x).topk(7, largest=False).indices
    adjacency = torch.zeros(nodes, nodes).scatter_(1, nearest, 1.0)
    adjacency = torch.maximum(adjacency, adjacency.T)
    roots = adjacency.sum(1).rsqrt()
    return x, labels[-nodes:], roots[:, None] * adjacency * roots


def graph(
    widths: tuple[int, ...], known: int, dropout: float, seed: int, directory: Path | None
) -> Training:
    """A graph network on the nearest neighbours of 800 digits, of which few labels are known."""
    x, labels, adjacency = _graph(800, directory)
    order = torch.randperm(len(labels), generator=Generator().manual_seed(seed))
    seen = order[:known]
    others = order[known:]
    model = _GraphNetwork((196, *widths, 10), adjacency, dropout)

    @torch.no_grad()
    def validate() -> Tensor:
        return F.cross_entropy(model(x)[others], labels[others])

    return Training(model, lambda k: F.cross_entropy(model(x)[seen], labels[seen]), validate)


def _tanh_network(*widths: int) -> nn.Sequential:
    layers = [nn.Tanh() if isinstance(each, nn.ReLU) else each for each in dense(widths)]
    return nn.Sequential(*layers)


def _slopes(u: Tensor, points: Tensor) -> Tensor:
    return torch.autograd.grad(u.sum(), points, create_graph=True)[0]


def heat(seed: int, directory: Path | None) -> Training:
    """u_t = 0.1 u_xx with u(x, 0) = sin πx on fixed points, judged by the solution."""
    model = _tanh_network(2, 24, 24, 1)
    generator = Generator().manual_seed(seed)
    inside = torch.rand(200, 2, generator=generator)
    x = torch.rand(60, generator=generator)
    start = torch.stack([x, torch.zeros(60)], 1)
    border = torch.stack([(torch.arange(60) % 2).float(), torch.rand(60, generator=generator)], 1)

    def loss(k: int) -> Tensor:
        points = inside.clone().requires_grad_()
        u = model(points)[:, 0]
        slopes = _slopes(u, points)
        equation = slopes[:, 1] - 0.1 * _slopes(slopes[:, 0], points)[:, 0]
        at_start = model(start)[:, 0] - torch.sin(math.pi * x)
        at_border = model(border)[:, 0]
        return sum_of_mean_squares(equation, at_start, at_border)

    grid = torch.cartesian_prod(torch.linspace(0, 1, 21), torch.linspace(0, 1, 21))
    solution = torch.sin(math.pi * grid[:, 0]) * torch.exp(-0.1 * math.pi**2 * grid[:, 1])

    @torch.no_grad()
    def validate() -> Tensor:
        return (model(grid)[:, 0] - solution).square().mean()

    return Training(model, loss, validate)


def oscillator(seed: int, directory: Path | None) -> Training:
    """u'' + 2u' + 40u = 0 with u(0) = 1, u'(0) = 0 on [0, 1], judged on other points."""
    model = _tanh_network(1, 32, 32, 32, 1)
    generator = Generator().manual_seed(seed)

    def residual(times: Tensor) -> Tensor:
        points = torch.cat([torch.zeros(1, 1), times]).requires_grad_()
        u = model(points)[:, 0]
        slope = _slopes(u, points)[:, 0]
        curvature = _slopes(slope, points)[:, 0]
        equation = (curvature + 2 * slope + 40 * u) / 40
        return sum_of_mean_squares(equation, u[:1] - 1, slope[:1] / 6)

    known = torch.rand(100, 1, generator=generator)
    others = torch.rand(200, 1, generator=generator)
    return Training(model, lambda k: residual(known), lambda: residual(others))


def sum_of_mean_squares(*terms: Tensor) -> Tensor:
    """Return the sum of the mean squares of some tensors."""
    return torch.stack([term.square().mean() for term in terms]).sum()


class _Recommender(nn.Module):
    """Embeddings of users and items, their inner product, and a dense network on both."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)
        self.layers = dense((2 * width, 32, 1))

    def forward(self, pairs: Tensor) -> Tensor:
        u = self.users(pairs[:, 0])
        v = self.items(pairs[:, 1])
        return (u * v).mean(1) + self.layers(torch.cat([u, v], 1))[:, 0]


def recommender(width: int, batch: int, seed: int, directory: Path | None) -> Training:
    """Ratings of 400 items by 600 users, a noisy matrix of rank 4 of which a tenth is known."""
    generator = Generator().manual_seed(seed)
    left = torch.randn(600, 4, generator=generator)
    right = torch.randn(4, 400, generator=generator)
    ratings = left @ right / 2 + 0.3 * torch.randn(600, 400, generator=generator)
    pairs = torch.stack([torch.randint(n, (30_000,), generator=generator) for n in (600, 400)], 1)
    model = _Recommender(600, 400, width)

    def error(some: Tensor) -> Tensor:
        return (model(some) - ratings[some[:, 0], some[:, 1]]).square().mean()

    def loss(k: int) -> Tensor:
        return error(pairs[torch.randint(24_000, (batch,), generator=generator)])

    @torch.no_grad()
    def validate() -> Tensor:
        return error(pairs[24_000:])

    return Training(model, loss, validate)


_MLP = partial(flat, (196, 64, 48, 10))
_DEEP_MLP = partial(flat, (196, 48, 48, 48, 48, 10))
_CNN = partial(plain_cnn, 8, 3, 14)

VARIED_LEARNING: tuple[GeneralTask, ...] = (
    GeneralTask("fine-tuned MLP", partial(fine_tuned_classifier, _MLP), 60),
    GeneralTask("fine-tuned transformer", partial(fine_tuned_transformer, 80, 3), 60),
    GeneralTask("sine network", partial(sines, 48, 3, 30.0), 150, decades=True),
    GeneralTask("graph network, 40 labels", partial(graph, (32,), 40, 0.3), 80),
    GeneralTask("MLP with batch 4", partial(classifier, _MLP, 4, 20_000), 400),
    GeneralTask("CNN with batch 4", partial(classifier, _CNN, 4, 20_000), 300),
    GeneralTask("MLP, 300 examples", partial(classifier, _MLP, 32, 300), 120),
    GeneralTask("heat equation", heat, 300, decades=True),
    GeneralTask("tied transformer", partial(tied_transformer, 1024, 56, 2, 8), 250),
    GeneralTask("patch transformer", partial(classifier, PatchTransformer, 32, 20_000), 200),
    GeneralTask("recommender", partial(recommender, 16, 256), 300),
    GeneralTask("MLP for 1000 steps", partial(classifier, _DEEP_MLP, 32, 20_000), 1000),
)
VARIED_VALIDATION: tuple[GeneralTask, ...] = (
    GeneralTask("fine-tuned deep MLP", partial(fine_tuned_classifier, _DEEP_MLP), 80),
    GeneralTask("fine-tuned narrow transformer", partial(fine_tuned_transformer, 48, 4), 80),
    GeneralTask("deeper sine network", partial(sines, 40, 4, 20.0), 200, decades=True),
    GeneralTask("deeper graph network", partial(graph, (48, 48), 80, 0.5), 100),
    GeneralTask("deep MLP with batch 4", partial(classifier, _DEEP_MLP, 4, 20_000), 500),
    GeneralTask("oscillator", oscillator, 400, decades=True),
    GeneralTask("wider tied transformer", partial(tied_transformer, 1024, 64, 2, 8), 200),
    GeneralTask("wider recommender", partial(recommender, 32, 128), 400),
)
