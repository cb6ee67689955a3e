"""Equivariance (Proposition 2), for permutations of hidden units and for motions of images.

A map Ω is equivariant under a group acting by g· if Ω(g·x) = g·Ω(x). The *defect* measures by how
much this equality fails.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Generator, Tensor, nn

from mirrordescent.methods import Method
from mirrordescent.mirrors import MirrorMap
from mirrordescent.mirrors.symmetry import check_equivariance
from mirrordescent.oracles import Default
from mirrordescent.problems import Problem

Action: TypeAlias = Callable[[Tensor], Tensor]

SHIFT = 3
"""Translation in pixels."""

MARGIN = 10
"""Border in pixels that is left out if the border itself breaks the symmetry."""

IMAGE_ACTIONS: dict[str, Action] = {
    "translation": lambda x: x.roll((SHIFT, SHIFT), (-2, -1)),
    "horizontal flip": lambda x: x.flip(-1),
    "vertical flip": lambda x: x.flip(-2),
    "rotation by 90°": lambda x: x.rot90(1, (-2, -1)),
}


@dataclass(frozen=True)
class Defects:
    """Equivariance defects of several maps.

    Attributes:
        group: Name of the group.
        by_name: Defects by the name of the map, then by the group element or the point in time.
    """

    group: str
    by_name: Mapping[str, Mapping[str, float]]


def defect(omega: Action, act: Action, x: Tensor, margin: int = 0) -> float:
    """Return the largest ‖Ω(g·x) − g·Ω(x)‖ / ‖Ω(x)‖ over a batch.

    For an iteration pass its displacement Ω − I, which is equivariant if and only if Ω is.
    Relative to Ω(x) itself, every short step would look equivariant.

    Args:
        omega: Map Ω.
        act: Group element g·.
        x: Batch of points.
        margin: Width in pixels of the border of images that is left out.

    >>> import torch
    >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> defect(lambda x: x * torch.tensor([1.0, 2.0]), IMAGE_ACTIONS["vertical flip"], x)
    0.0
    """
    expected = act(omega(x))
    error = omega(act(x)) - expected
    if margin:
        inner = (..., slice(margin, -margin), slice(margin, -margin))
        error = error[inner]
        expected = expected[inner]
    sizes = torch.linalg.vector_norm(expected.flatten(1), dim=1)
    sizes = sizes.clamp(min=torch.finfo(expected.dtype).tiny)
    return float((torch.linalg.vector_norm(error.flatten(1), dim=1) / sizes).max())


@torch.no_grad()
def image_defects(mirror: MirrorMap, x: Tensor) -> dict[str, dict[str, float]]:
    """Return the defects of ∇ψ and ∇ψ* under translations, flips and rotations of images.

    Translations are circular. A network that pads with zeros commutes with them except at the
    border, so that for large enough images the defect away from the border is measured too.

    Args:
        mirror: Map on images.
        x: Images (batch, channels, height, width).
    """
    return {
        "∇ψ": _motion_defects(cast(Action, mirror.to_dual), x),
        "∇ψ*": _motion_defects(cast(Action, mirror.to_primal), mirror.to_dual(x)),
    }


def _motion_defects(omega: Action, x: Tensor) -> dict[str, float]:
    defects = {motion: defect(omega, act, x) for motion, act in IMAGE_ACTIONS.items()}
    margin = MARGIN + SHIFT
    if min(x.shape[-2:]) > 2 * margin:
        inner = defect(omega, IMAGE_ACTIONS["translation"], x, margin)
        defects["translation, away from the border"] = inner
    return defects


def network_defect(
    method: Method[Any], problem: Problem, model: nn.Module, generator: Generator, steps: int = 1
) -> float:
    """Return max_g ‖Ω(g·z) − g·Ω(z)‖ / ‖Ω(z) − z‖ for steps Ω on a network's loss (Proposition 2).

    The loss is invariant, L(g·z) = L(z), so that z − η∇L(z) is equivariant: the defect of gradient
    descent is rounding.

    Args:
        method: Method whose steps are Ω.
        problem: Loss of the network.
        model: Network with parameters z.
        generator: Random generator for the permutations g of hidden units.
        steps: Number of steps that Ω takes.
    """

    def omega(z: dict[str, Tensor]) -> Mapping[str, Tensor]:
        state = method.init({name: leaf.unsqueeze(0) for name, leaf in z.items()}, problem)
        with torch.no_grad():
            for _ in range(steps):
                state = method.step(problem, state, Default(), generator)
        answer = cast(dict[str, Tensor], method.answer(state))
        return {name: leaf.squeeze(0) for name, leaf in answer.items()}

    return check_equivariance(omega, model, generator)
