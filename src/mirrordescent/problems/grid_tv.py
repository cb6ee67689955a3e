"""Denoising of signals, images, volumes and video by total variation, with a weight per axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from mirrordescent.kernels import available, supports, tracked
from mirrordescent.kernels.grid_steps import (
    MOST_AXES,
    GridShape,
    blocks_fit,
    grid_bound,
    grid_value,
)
from mirrordescent.problems.grid_denoising import GridDenoising
from mirrordescent.problems.terms import Blocks
from mirrordescent.problems.variation import TV


class GridTV(GridDenoising):
    """f(x) = s·(‖x − y‖² + λ Σ_g h(|(WDx)_g|)): total-variation denoising on a grid.

    Points are (batch, channels, …) with any number of axes: signals have one, images two, volumes
    and video three. D takes forward differences along all axes, and W multiplies those along axis k
    by a weight wₖ. Groups g and the function h are those of
    :class:`~mirrordescent.problems.TVInpainting`.

    There are compiled kernels for up to three axes. With a mask or an operator, use
    ``Composite(SquaredError(y, operator, mask), [TV(weight, axis_weights=…)])``.

    Args:
        y: Observed points, (batch, channels, …).
        weight: Weight λ, a number or a tensor (batch,).
        scale: Scale s.
        axis_weights: Weights wₖ, such as inverse distances of neighbouring voxels, or a weight of
            time in video; None if all are 1.
        isotropic: Whether all differences of a point are one group.
        coupled: Whether a group extends over all channels.
        huber: Width η of the Huber function, in units of the data.

    >>> import torch
    >>> volume = torch.zeros(1, 1, 2, 2, 2)
    >>> volume[..., 1] = 3.0
    >>> GridTV(volume, weight=0.5, axis_weights=(1, 1, 0.5)).value(volume)
    tensor([1.5000])
    """

    def __init__(
        self,
        y: Tensor,
        weight: float | Tensor = 0.15,
        scale: float = 0.5,
        *,
        axis_weights: Sequence[float] | None = None,
        isotropic: bool = False,
        coupled: bool = False,
        huber: float = 0.0,
    ) -> None:
        super().__init__(y, TV(weight, isotropic, coupled, huber, axis_weights), scale)

    @property
    def variation(self) -> TV:
        """The total-variation term."""
        return cast(TV, self.parts[0])

    @property
    def isotropic(self) -> bool:
        """Whether all differences of a point are one group."""
        return self.variation.isotropic

    @property
    def coupled(self) -> bool:
        """Whether a group extends over all channels."""
        return self.variation.coupled

    @property
    def huber(self) -> float:
        """The width η of the Huber function."""
        return self.variation.huber

    @property
    def grid_shape(self) -> GridShape:
        """The axes and groups, for the kernels."""
        return GridShape(self.variation.weights_of_axes, self.isotropic, self.coupled)

    def value(self, x: Tensor) -> Tensor:
        if not self.compiled(x) or x.shape != self.y.shape:
            return super().value(x)
        sums = grid_value(x, self.y, self.grid_shape, self.huber)
        return (self.scale * sums[:, 0] + self.radius() * sums[:, 1]).to(x.dtype)

    def bound_sums(self, u: Blocks) -> tuple[Tensor, Tensor]:
        if not self.compiled(*u.values()) or not blocks_fit(list(u.values()), self.y):
            return super().bound_sums(u)
        sums = grid_bound(
            list(u.values()),
            self.y,
            self.grid_shape,
            self.radius(),
            2 * self.scale,
            self.centre(),
        )
        return sums[:, :3], self.huber / (2 * self.radius()) * sums[:, 3]

    def compiled(self, *tensors: Tensor) -> bool:
        """Return whether kernels apply: they exist for this grid, and no derivative is needed."""
        few = self.y.ndim <= 2 + MOST_AXES
        usable = few and supports(self.y) and available() and not tracked(self.y, *tensors)
        return usable and all(x.dtype == self.y.dtype and supports(x) for x in tensors)


class WindowTV(GridTV):
    """The part of a total-variation problem in a window, while all else is held fixed.

    Along an axis that is ``held``, the groups of the last layer are left out, because the window
    ends there and the grid does not: their differences to points outside are not in the window.

    Args:
        y: Observed points plus the pull of the dual variables outside, (batch, channels, …).
        weight: Weight λ.
        scale: Scale s.
        axis_weights: Weights of the axes.
        isotropic: Whether all differences of a point are one group.
        held: Whether the groups of the last layer are left out, for every axis.
    """

    def __init__(
        self,
        y: Tensor,
        weight: float | Tensor,
        scale: float = 0.5,
        *,
        axis_weights: Sequence[float] | None = None,
        isotropic: bool = False,
        held: Sequence[bool] = (),
    ) -> None:
        super().__init__(y, weight, scale, axis_weights=axis_weights, isotropic=isotropic)
        self.held = tuple(bool(each) for each in held)
        if len(self.held) != y.ndim - 2:
            raise ValueError(f"held needs {y.ndim - 2} entries, one per axis, got {self.held}")

    @property
    def grid_shape(self) -> GridShape:
        return super().grid_shape._replace(held=self.held)

    def value(self, x: Tensor) -> Tensor:
        if self.compiled(x) and x.shape == self.y.shape:
            return super().value(x)
        total = self.variation.groups.total(self.K(x), self.huber)
        return self.smooth.value(x) + self.kink * total

    def K(self, x: Tensor) -> Blocks:
        return self._free(super().K(x))

    def K_adjoint(self, u: Blocks) -> Tensor:
        return super().K_adjoint(self._free(u))

    def bound_sums(self, u: Blocks) -> tuple[Tensor, Tensor]:
        return super().bound_sums(self._free(u))

    def _free(self, u: Blocks) -> Blocks:
        """Return blocks that are 0 in the groups that are left out."""
        free = {}
        for axis, name in enumerate(self.variation.blocks):
            block = u[name].clone()
            for other, held in enumerate(self.held):
                if held and other != axis:
                    block.narrow(2 + other, block.shape[2 + other] - 1, 1).zero_()
            free[name] = block
        return free
