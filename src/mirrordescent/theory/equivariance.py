"""Equivariance measured: Proposition 2, for permutations of hidden units and for motions of images.

A map Ω is equivariant under a group acting by g· if Ω(g·x) = g·Ω(x). Measured is the *defect*, by
how much that fails.
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
SHIFT = 3  # pixels
MARGIN = 10  # pixels at the border that are left out where the border itself breaks the symmetry

IMAGE_ACTIONS: dict[str, Action] = {
    "translation": lambda x: x.roll((SHIFT, SHIFT), (-2, -1)),
    "horizontal flip": lambda x: x.flip(-1),
    "vertical flip": lambda x: x.flip(-2),
    "rotation by 90°": lambda x: x.rot90(1, (-2, -1)),
}


@dataclass(frozen=True)
class Defects:
    """Defects of several maps: under some elements of a group, or before and after learning, {map:
    {which: …}}.
    """

    group: str
    by_name: Mapping[str, Mapping[str, float]]


def defect(omega: Action, act: Action, x: Tensor, margin: int = 0) -> float:
    """‖Ω(g·x) − g·Ω(x)‖ / ‖Ω(x)‖, the largest over a batch, without a margin around images.

    For an iteration pass what it moves by, Ω − I, which is equivariant if and only if Ω is:
    relative to Ω(x) itself, every short step looks equivariant.

    >>> import torch
    >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> defect(lambda x: x * torch.tensor([1.0, 2.0]), IMAGE_ACTIONS["vertical flip"], x)
    0.0
    """
    after = act(omega(x))
    difference = omega(act(x)) - after
    if margin:
        inner = (..., slice(margin, -margin), slice(margin, -margin))
        difference = difference[inner]
        after = after[inner]
    sizes = torch.linalg.vector_norm(after.flatten(1), dim=1).clamp(
        min=torch.finfo(after.dtype).tiny
    )
    return float((torch.linalg.vector_norm(difference.flatten(1), dim=1) / sizes).max())


@torch.no_grad()
def image_defects(mirror: MirrorMap, x: Tensor) -> dict[str, dict[str, float]]:
    """Return the defects of ∇ψ and ∇ψ* of a map on images (batch, channels, height, width) under
    their motions.

    Translations are circular. A network that pads with zeros commutes with them except at the
    border; where images are large enough, the defect away from it is measured too.
    """
    found = {}
    for name, field, at in (
        ("∇ψ", mirror.to_dual, x),
        ("∇ψ*", mirror.to_primal, mirror.to_dual(x)),
    ):
        omega = cast(Action, field)
        at = cast(Tensor, at)
        found[name] = {motion: defect(omega, act, at) for motion, act in IMAGE_ACTIONS.items()}
        if min(at.shape[-2:]) > 2 * (margin := MARGIN + SHIFT):
            inner = defect(omega, IMAGE_ACTIONS["translation"], at, margin)
            found[name]["translation, away from the border"] = inner
    return found


def network_defect(
    method: Method[Any], problem: Problem, model: nn.Module, generator: Generator, steps: int = 1
) -> float:
    """Return max_g ‖Ω(g·z) − g·Ω(z)‖ / ‖Ω(z) − z‖ for Ω, some steps of a method on a network's loss
    (Proposition 2).

    The loss is invariant, L(g·z) = L(z), so that z − η∇L(z) is equivariant: the defect of gradient
    descent is rounding. z are the parameters of the model; the generator draws permutations g of
    its hidden units.
    """

    def omega(z: dict[str, Tensor]) -> Mapping[str, Tensor]:
        state = method.init({name: leaf.unsqueeze(0) for name, leaf in z.items()}, problem)
        with torch.no_grad():
            for _ in range(steps):
                state = method.step(problem, state, Default(), generator)
        return {
            name: leaf.squeeze(0)
            for name, leaf in cast(dict[str, Tensor], method.answer(state)).items()
        }

    return check_equivariance(omega, model, generator)
