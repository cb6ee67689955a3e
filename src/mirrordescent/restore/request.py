"""What is to be done with a photograph, in plain units."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from mirrordescent._internal.checks import require_not_negative, require_positive
from mirrordescent.restore.degradation import Degradation
from mirrordescent.restore.planning import Task

if TYPE_CHECKING:
    from torch import nn

PriorLike: TypeAlias = Union[str, Path, "nn.Module"]
"""``"auto"``, ``"tv"``, ``"photo"``, a zoo entry or .safetensors file, or a prior itself."""

PHOTOGRAPHIC = {"isotropic": True, "coupled": True}
"""The total variation that suits photographs."""
LARGEST_NOISE = 1.0


@dataclass(frozen=True)
class Request:
    """What is to be done with photographs.

    Args:
        task: "denoise", "inpaint", "deblur" or "upsample".
        prior: Regulariser: "tv" for total variation, "photo" for the learned prior, a file or an
            object for another learned prior. With "auto", the learned prior is used in denoising
            for noise up to 20 %, and for colour photographs in inpainting for noise up to 20 % and
            in deblurring for noise up to 3 %; otherwise total variation.
        noise: Standard deviation σ of the noise, for values from 0 to 1; None to estimate it.
        strength: Factor of the noise level that is assumed. More than 1 gives a smoother
            photograph.
        weight: Weight λ of the total variation, in place of noise and strength.
        keep_known: Whether known pixels stay as they are in inpainting; None to keep them if there
            is hardly any noise.
        degradation: Blur or reduction of size that is undone.
        variant: Keyword arguments of :class:`~mirrordescent.problems.TVInpainting`.
    """

    task: Task
    prior: PriorLike = "auto"
    noise: float | None = None
    strength: float = 1.0
    weight: float | None = None
    keep_known: bool | None = None
    degradation: Degradation = field(default_factory=Degradation)
    variant: dict[str, Any] = field(default_factory=lambda: dict(PHOTOGRAPHIC))

    def __post_init__(self) -> None:
        require_positive(strength=self.strength)
        if self.noise is not None:
            require_not_negative(noise=self.noise)
            if self.noise > LARGEST_NOISE:
                raise ValueError(
                    "noise must be a standard deviation for values from 0 to 1, such as 0.05 for "
                    f"5 %, got {self.noise:g}"
                )
        if self.weight is None:
            return
        require_positive(weight=self.weight)
        if self.noise is not None or self.strength != 1:
            raise ValueError("give either a weight, or noise and strength, not both")
        if self.prior not in ("auto", "tv"):
            raise ValueError(
                "a weight is for total variation (prior tv): give noise or strength instead"
            )
