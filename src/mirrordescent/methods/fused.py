"""A learned method whose whole iteration is one kernel."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from mirrordescent.kernels import library
from mirrordescent.methods.accelerated import AMD, AMDState
from mirrordescent.methods.base import Method
from mirrordescent.methods.equipped import Equipped
from mirrordescent.mirrors.stencil import Stencil
from mirrordescent.oracles import Rounded
from mirrordescent.trees import Tree

if TYPE_CHECKING:
    from mirrordescent.mirrors.base import MirrorMap
    from mirrordescent.oracles import Oracle
    from mirrordescent.problems.base import Problem

TYPES = {torch.float32: "float", torch.float64: "double"}


class Fused(Method[AMDState]):
    """AMD with a stencil for its map and rounded gradients, on total-variation problems, in one pass over the images:

    .. code-block:: none

        h  =  S ∇f_a(x) S                                    S: the stencil, down the columns and along the rows
        z⁺ =  z − w_k t_k h,    x⁺ = λ_k+1 z⁺ + (1 − λ_k+1) (x − γ_k t_k h)

    The numbers are those of the method but for rounding, and a step takes a fraction of the time. The kernel is in C,
    compiled when first asked for, in a few seconds, and kept in the cache; it is for CPUs, single and double
    precision. Elsewhere the method steps as it would without.

    Args:
        method: such as the entries of the zoo that end in ``-spectral``.

    >>> from mirrordescent import zoo
    >>> Fused(zoo.load("mnist49-svm"))
    Traceback (most recent call last):
    TypeError: there is a kernel for AMD with a Stencil and Rounded gradients, not for MD
    """

    def __init__(self, method: Method[Any]) -> None:
        super().__init__()
        inner = method.method if isinstance(method, Equipped) else method
        if not (
            isinstance(method, Equipped)
            and type(method.oracle) is Rounded
            and type(inner) is AMD
            and type(inner.mirror) is Stencil
            and inner.regulariser is inner.mirror
            and (inner.storage, inner.returned) == ("primal", "x")
        ):
            raise TypeError(f"there is a kernel for AMD with a Stencil and Rounded gradients, not for {_name(inner)}")
        library()  # now, and not in the middle of the first step
        self.method, self.inner, self.oracle, self.stencil = method, inner, method.oracle, inner.mirror

    @property
    def mirror(self) -> MirrorMap:
        """The map of the method."""
        return self.inner.mirror

    def init(self, x0: Tree) -> AMDState:
        """Start the method."""
        return self.inner.init(x0)

    def update(self, state: AMDState, grad: Tree) -> AMDState:
        """Update the method."""
        return self.inner.update(state, grad)

    def step(self, problem: Problem, state: AMDState, oracle: Oracle, generator: Generator | None = None) -> AMDState:
        """Take a step by the kernel, or, where it cannot be used, by the method."""
        from mirrordescent.problems.tv import TVInpainting  # problems are to the right of methods

        x, z = state.x, state.z
        if not (
            isinstance(problem, TVInpainting)
            and problem.operator is None
            and isinstance(x, Tensor)
            and isinstance(z, Tensor)
            and x.device.type == "cpu"
            and x.dtype in TYPES
            and not torch.is_grad_enabled()
        ):
            return self.method.step(problem, state, oracle, generator)
        return self._step(problem.y, problem.mask, 2 * problem.scale, problem.scale * problem.weight, x, z, state.k + 1)

    def _step(
        self, y: Tensor, mask: Tensor | None, fidelity: float, bound: float, x: Tensor, z: Tensor, count: int
    ) -> AMDState:
        x, z, y = x.contiguous(), z.contiguous(), y.contiguous()
        *_, height, width = x.shape
        if mask is not None:
            shared = mask.numel() == height * width
            mask = (mask if shared else mask.expand_as(x)).contiguous()
        x_new, z_new = torch.empty_like(x), torch.empty_like(z)
        masks = 0 if mask is None else mask.numel() // (height * width)
        method = self.inner
        t = float(method.t(count))
        numbers = (
            fidelity,
            float(self.oracle.curvature(count)),
            bound,
            float(self.stencil.damping) / 4,
            t * float(method.dual_weight(count)),
            t * float(method.gamma(count)),
            float(method.mixing(count + 1)),
        )
        failed = library()[f"amd_stencil_{TYPES[x.dtype]}"](
            *map(ctypes.c_long, (x.numel() // (height * width), height, width)),
            *(_address(tensor) for tensor in (x, z, y, mask)),
            ctypes.c_long(masks),
            *(_address(tensor) for tensor in (x_new, z_new)),
            *map(ctypes.c_double, numbers),
            ctypes.c_int(torch.get_num_threads()),
        )
        if failed:
            raise MemoryError("there is no memory left for a row of pixels")
        return AMDState(count, z_new, x_new, x_new)

    def inside(self, state: AMDState) -> Tensor:
        """Ask the method."""
        return self.inner.inside(state)


def _address(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _name(method: Method[Any]) -> str:
    return type(method).__name__
