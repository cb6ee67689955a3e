"""The d of maps with ∇ψ(x) = d·x, for which steps can be taken in place."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mirrordescent.domains import WholeSpace
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.mirrors.quadratic import Diagonal, Euclidean
from mirrordescent.mirrors.tied import Multipliers
from mirrordescent.trees import fits


class Curvature:
    """d of ∇ψ(x) = d·x, a tensor that broadcasts to x. It is read anew whenever the map has changed."""

    def __init__(self, mirror: Diagonal | Multipliers) -> None:
        self.mirror = mirror
        name = "d" if isinstance(mirror, Diagonal) else "log_multiplier"
        # Not by attribute: hundreds of maps have less time for one step than a module takes to find its attribute.
        tensors: dict[str, Any] = mirror._parameters if name in mirror._parameters else mirror._buffers
        self.source = (tensors, name)
        self._made_of: Any = None
        self._version = -1
        self._d: Tensor

    def __call__(self) -> Tensor:
        """Return d."""
        tensors, name = self.source
        held = tensors[name]
        if held is not self._made_of or held._version != self._version:
            self._made_of, self._version, self._d = held, held._version, self._read()
        return self._d

    def _read(self) -> Tensor:
        if isinstance(self.mirror, Multipliers):
            return self.mirror.log_multiplier.detach().neg().exp()[self.mirror.groups]
        return self.mirror.d.detach()

    def fits(self, x: Tensor) -> bool:
        """Tell whether d can be used on such tensors as it is."""
        d = self()
        return d.dtype == x.dtype and d.device == x.device and fits(d.shape, x.shape)


def curvature_of(mirror: MirrorMap) -> Curvature | None:
    """Return the d of a map, if it has one other than 1; a subclass may be another map."""
    return Curvature(mirror) if type(mirror) in (Diagonal, Multipliers) else None  # type: ignore[arg-type]


def is_identity(mirror: MirrorMap) -> bool:
    """Tell whether d = 1, on all of Rⁿ."""
    return type(mirror) is Euclidean and isinstance(mirror.primal_domain, WholeSpace)
