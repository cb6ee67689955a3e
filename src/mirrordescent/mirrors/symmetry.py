"""The permutation symmetries of a network, under which entries of its parameters are equivalent."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import TypeAlias

import torch
from torch import Generator, Tensor, nn

from mirrordescent.mirrors.tracing import Axis, Factor, trace

Permutations: TypeAlias = Mapping[int, Tensor]
ELEMENTS = 4
"""Number of random group elements that a check tries."""


@dataclass(frozen=True)
class Symmetry:
    """The group G = Π Sym(n_id) of permutations of hidden units, and its action on the parameters.

    Every set of hidden units has its own permutation group. Renumbering the hidden units of a
    network A₃σ(A₂σ(A₁x + b₁) + b₂) + b₃ by permutations ρ does not change its function:

    .. code-block:: none

        g·A₁ = A₁[ρ₁, :]    g·A₂ = A₂[ρ₂, ρ₁]    g·A₃ = A₃[:, ρ₂]    g·b_i = b_i[ρ_i]

    Args:
        axes: Index sets of the axes of every parameter and buffer, by name.
        not_understood: Operations with unknown symmetries, whose units are not permuted.
    """

    axes: dict[str, tuple[Axis, ...]]
    not_understood: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[int, int]:
        """The number n of units that each group permutes."""
        sizes = {}
        for axes in self.axes.values():
            for factor in chain.from_iterable(axes):
                if factor.group is not None:
                    sizes[factor.group] = factor.size
        return sizes

    def orbits(self, name: str, *, whole_axes: bool = False) -> Tensor:
        """Number the orbits of G in one tensor.

        Entries share an orbit if their fixed indices agree and, if one group acts on two axes, both
        entries or neither are on the diagonal.

        Args:
            name: Name of a parameter or buffer.
            whole_axes: Whether to treat an axis of channels × positions as if all of it were
                permuted, which is not a symmetry.

        Returns:
            Integers 0 … count−1, in the smallest shape that broadcasts to the tensor.
        """
        axes = list(self.axes[name])
        if whole_axes:
            axes = [() if _is_mixed(axis) else axis for axis in axes]
        code = torch.zeros([1] * len(axes), dtype=torch.long)
        permuted: dict[int, list[Tensor]] = {}  # indices that each group permutes
        for dim, axis in enumerate(axes):
            for factor, index in _indices(axis, dim, len(axes)):
                if factor.group is None:
                    code = code * factor.size + index
                    continue
                # Of a permuted index, only equality with others of its group is invariant.
                for other in permuted.setdefault(factor.group, []):
                    code = code * 2 + (index == other)
                permuted[factor.group].append(index)
        if any(len(indices) > 1 for indices in permuted.values()):
            # Some combinations may not occur, so renumber the codes without gaps.
            code = torch.unique(code, return_inverse=True)[1].reshape(code.shape)
        return code

    def random(self, generator: Generator) -> dict[int, Tensor]:
        """Draw a uniformly distributed permutation ρ for each group."""
        device = generator.device
        return {
            group: torch.randperm(n, generator=generator, device=device)
            for group, n in self.sizes.items()
        }


def symmetries(model: nn.Module, example: Tensor | None = None) -> Symmetry:
    """Find the permutations of hidden units that do not change the function of a network.

    Supported are dense and convolutional layers, batch, instance and layer normalisation,
    elementwise functions, pooling, flattening, means over positions, and sums of activations
    (residual connections). Other operations are listed in ``Symmetry.not_understood``. The input,
    the output and frozen parameters keep their order.

    Args:
        model: Module that torch.fx can trace.
        example: Input of the network, which determines the shapes of activations. Without it, dense
            layers are assumed to act on (batch, features), and some reshapes are not understood.

    >>> model = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 1))
    >>> {name: len(symmetries(model).orbits(name).unique()) for name in model.state_dict()}
    {'0.weight': 2, '0.bias': 1, '2.weight': 1, '2.bias': 1}
    """
    return Symmetry(*trace(model, example))


def permute(
    parameters: Mapping[str, Tensor], g: Permutations, symmetry: Symmetry
) -> dict[str, Tensor]:
    """Return g·z, the same network with renumbered hidden units: unit i is the former unit ρ(i).

    Args:
        parameters: Parameters z by name, with optional leading dimensions such as a batch. Tensors
            that the symmetry does not name are unchanged.
        g: Permutation ρ of each group.
        symmetry: Symmetry of the network.
    """
    return {
        name: _permute(tensor, g, symmetry.axes.get(name, ()))
        for name, tensor in parameters.items()
    }


def check_equivariance(
    step: Callable[[dict[str, Tensor]], Mapping[str, Tensor]],
    model: nn.Module,
    generator: Generator,
    example: Tensor | None = None,
) -> float:
    """Return max_g ‖Ω(g·z) − g·Ω(z)‖ / ‖Ω(z) − z‖ over some random g.

    For an equivariant Ω this is 0, up to rounding.

    Args:
        step: Update Ω of an optimiser, from trainable parameters by name to the next parameters.
        model: Network with parameters z.
        generator: Random generator for g.
        example: Input of the network; see :func:`symmetries`.
    """
    symmetry = symmetries(model, example)
    z = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    after = step(z)
    moved = _distance(after, z)
    worst = 0.0
    for _ in range(ELEMENTS):
        g = symmetry.random(generator)
        defect = _distance(step(permute(z, g, symmetry)), permute(after, g, symmetry))
        worst = max(worst, defect / moved if moved else defect)
    return worst


def _distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    total = 0.0
    for name in second:
        difference = (first[name] - second[name]).detach().double()
        total += float(difference.square().sum())
    return total**0.5


def _is_mixed(axis: Axis) -> bool:
    """Tell whether an axis has both permuted and fixed factors, such as channels × positions."""
    return len({factor.group is None for factor in axis}) == 2


def _permute(tensor: Tensor, g: Permutations, axes: tuple[Axis, ...]) -> Tensor:
    for dim, axis in zip(range(-len(axes), 0), axes, strict=True):
        if all(factor.group is None for factor in axis):
            continue
        order = torch.zeros(1, dtype=torch.long, device=tensor.device)
        for size, group in axis:
            rho = torch.arange(size) if group is None else g[group]
            order = (order[:, None] * size + rho.to(tensor.device)).flatten()
        tensor = tensor.index_select(dim, order)
    return tensor


def _indices(axis: Axis, dim: int, ndim: int) -> Iterator[tuple[Factor, Tensor]]:
    """Yield the factors of an axis, each with the index of every entry along the axis."""
    position = torch.arange(prod(factor.size for factor in axis))
    stride = len(position)
    for factor in axis:
        stride //= factor.size
        index = position // stride % factor.size
        yield factor, index.reshape([-1 if d == dim else 1 for d in range(ndim)])
