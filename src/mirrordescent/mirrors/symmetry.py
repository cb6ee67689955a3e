"""The permutation symmetries of a network: which entries of its parameters no training can tell
apart.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import torch
from torch import Generator, Tensor, nn

from mirrordescent.mirrors.tracing import Axis, Factor, trace

Permutations: TypeAlias = Mapping[int, Tensor]
ELEMENTS = 4  # group elements tried by a check


@dataclass(frozen=True)
class Symmetry:
    """G = Π Sym(n_id), a permutation group for each set of hidden units, and how it acts on the
    parameters.

    The action renumbers hidden units, in a network A₃σ(A₂σ(A₁x + b₁) + b₂) + b₃ by

    .. code-block:: none

        g·A₁ = A₁[ρ₁, :]    g·A₂ = A₂[ρ₂, ρ₁]    g·A₃ = A₃[:, ρ₂]    g·b_i = b_i[ρ_i]

    and leaves the function as it is.

    Args:
        axes: for every parameter and buffer, by name, what each of its axes is indexed by.
        not_understood: the operations around which nothing is permuted, because their symmetries
            are not known.
    """

    axes: dict[str, tuple[Axis, ...]]
    not_understood: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[int, int]:
        """The number n of units that each group permutes."""
        factors = (factor for axes in self.axes.values() for axis in axes for factor in axis)
        return {factor.group: factor.size for factor in factors if factor.group is not None}

    def orbits(self, name: str, *, whole_axes: bool = False) -> Tensor:
        """Number the orbits of G in one tensor: integers 0 … count−1 in the smallest shape that
        broadcasts to it.

        Entries share an orbit if their fixed indices agree and, where one group acts on two axes,
        both or neither lie on the diagonal.

        Args:
            name: of a parameter or buffer.
            whole_axes: treat an axis of channels × positions as if all of it were permuted, which
                is not a symmetry.
        """
        kinds = {axis: {factor.group is None for factor in axis} for axis in self.axes[name]}
        axes = [() if whole_axes and len(kinds[axis]) == 2 else axis for axis in self.axes[name]]
        code = torch.zeros([1] * len(axes), dtype=torch.long)
        seen: dict[int, list[Tensor]] = {}
        for dim, axis in enumerate(axes):
            for factor, index in _indices(axis, dim, len(axes)):
                if factor.group is None:
                    code = code * factor.size + index
                else:
                    # An index that a group permutes counts only by which others of that group it
                    # equals.
                    for other in seen.setdefault(factor.group, []):
                        code = code * 2 + (index == other)
                    seen[factor.group].append(index)
        if any(
            len(indices) > 1 for indices in seen.values()
        ):  # then some combinations may not occur
            code = torch.unique(code, return_inverse=True)[1].reshape(code.shape)
        return code

    def random(self, generator: Generator) -> dict[int, Tensor]:
        """Draw a permutation ρ for each group, uniformly."""
        device = generator.device
        return {
            group: torch.randperm(n, generator=generator, device=device)
            for group, n in self.sizes.items()
        }


def symmetries(model: nn.Module, example: Tensor | None = None) -> Symmetry:
    """Find the permutations of hidden units that leave the function of a network as it is.

    These are understood: dense and convolutional layers, batch, instance and layer normalisation,
    elementwise functions, pooling, flattening, means over positions and sums of streams (residual
    connections). The rest is listed in ``Symmetry.not_understood``. The input, the output and
    frozen parameters keep their order.

    Args:
        model: any module that torch.fx can trace.
        example: an input, which tells the shapes of activations. Without it dense layers are taken
            to work on (batch, features), and some reshapings are not understood.

    >>> model = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 1))
    >>> {name: len(symmetries(model).orbits(name).unique()) for name in model.state_dict()}
    {'0.weight': 2, '0.bias': 1, '2.weight': 1, '2.bias': 1}
    """
    return Symmetry(*trace(model, example))


def permute(
    parameters: Mapping[str, Tensor], g: Permutations, symmetry: Symmetry
) -> dict[str, Tensor]:
    """Return g·z: the same network with its hidden units renumbered; unit i becomes the former
    ρ(i).

    Tensors may have further leading dimensions, such as a batch. Those that the symmetry does not
    name are kept.
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
    """Return max_g ‖Ω(g·z) − g·Ω(z)‖ / ‖Ω(z) − z‖ over some random g: 0, up to rounding, for an
    equivariant Ω.

    Args:
        step: an optimiser's update map Ω, from trainable parameters by name to the next ones.
        model: the network, at the parameters z.
        generator: draws g.
        example: see :func:`symmetries`.
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
    return (
        sum(float((first[name] - second[name]).detach().double().square().sum()) for name in second)
        ** 0.5
    )


def _permute(tensor: Tensor, g: Permutations, axes: tuple[Axis, ...]) -> Tensor:
    for dim, axis in zip(range(-len(axes), 0), axes, strict=True):
        if any(factor.group is not None for factor in axis):
            order = torch.zeros(1, dtype=torch.long, device=tensor.device)
            for size, group in axis:
                rho = torch.arange(size) if group is None else g[group]
                order = (order[:, None] * size + rho.to(tensor.device)).flatten()
            tensor = tensor.index_select(dim, order)
    return tensor


def _indices(axis: Axis, dim: int, ndim: int) -> Iterator[tuple[Factor, Tensor]]:
    """Yield the factors of an axis with the index that each entry along it has in them."""
    position = torch.arange(prod(factor.size for factor in axis))
    stride = len(position)
    for factor in axis:
        stride //= factor.size
        index = position // stride % factor.size
        yield factor, index.reshape([-1 if d == dim else 1 for d in range(ndim)])
