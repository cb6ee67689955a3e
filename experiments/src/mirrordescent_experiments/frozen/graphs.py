"""Frozen tasks on graphs of nearest neighbours with few labels."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent.recipes.general_tasks import Training
from mirrordescent_experiments.frozen.images import images


@lru_cache(maxsize=2)
def neighbour_graph(
    name: str, nodes: int, neighbours: int, directory: Path | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, labels, and the indices (nodes, neighbours) of nearest other nodes."""
    pixels, labels, _, _ = images(name, directory)
    x = pixels[:nodes].flatten(1)
    nearest = torch.cdist(x, x).topk(neighbours + 1, largest=False).indices[:, 1:]
    return x, labels[:nodes], nearest


class GCN(nn.Module):
    """Three graph convolutions: x ← A x Wᵀ with the normalised adjacency A, ReLU and dropout."""

    def __init__(self, widths: tuple[int, ...], adjacency: Tensor) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairs[:-1]])
        self.head = nn.Linear(*pairs[-1])
        self.adjacency = adjacency

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of all nodes."""
        for layer in self.layers:
            x = F.dropout(F.relu(torch.sparse.mm(self.adjacency, layer(x))), 0.3, self.training)
        return torch.sparse.mm(self.adjacency, self.head(x))


def normalised_adjacency(nearest: Tensor) -> Tensor:
    """Return D^−½ (A + I) D^−½ of the symmetric graph of nearest neighbours, in CSR form."""
    nodes, neighbours = nearest.shape
    rows = torch.arange(nodes).repeat_interleave(neighbours)
    dense = torch.eye(nodes)
    dense[rows, nearest.flatten()] = 1
    dense = torch.maximum(dense, dense.T)
    roots = dense.sum(1).rsqrt()
    return (roots[:, None] * dense * roots).to_sparse_csr()


def _node_training(model: nn.Module, x: Tensor, labels: Tensor, known: int, seed: int) -> Training:
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    seen = order[:known]
    held_out = order[known:]

    def loss(k: int) -> Tensor:
        return F.cross_entropy(model(x)[seen], labels[seen])

    def validate() -> Tensor:
        with torch.no_grad():
            return F.cross_entropy(model(x)[held_out], labels[held_out])

    return Training(model, loss, validate)


def gcn(seed: int, directory: Path | None) -> Training:
    """A GCN on the graph of 4000 MNIST digits with nine neighbours each; 200 labels are known."""
    x, labels, nearest = neighbour_graph("mnist", 4000, 9, directory)
    model = GCN((784, 64, 64, 10), normalised_adjacency(nearest))
    return _node_training(model, x, labels, 200, seed)


class SAGE(nn.Module):
    """Two layers W₁x + W₂·mean of the neighbours, with layer norms, and a dense layer."""

    def __init__(self, inputs: int, width: int, nearest: Tensor) -> None:
        super().__init__()
        sizes = ((inputs, width), (width, width))
        self.own = nn.ModuleList([nn.Linear(a, b) for a, b in sizes])
        self.others = nn.ModuleList([nn.Linear(a, b, bias=False) for a, b in sizes])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in sizes])
        self.head = nn.Linear(width, 10)
        self.nearest = nearest

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of all nodes."""
        for own, others, norm in zip(self.own, self.others, self.norms, strict=True):
            x = F.relu(norm(own(x) + others(x)[self.nearest].mean(1)))
        return self.head(x)


def sage(seed: int, directory: Path | None) -> Training:
    """GraphSAGE on the graph of 2000 Fashion-MNIST images; 300 labels are known."""
    x, labels, nearest = neighbour_graph("fashion-mnist", 2000, 6, directory)
    return _node_training(SAGE(784, 48, nearest), x, labels, 300, seed)
