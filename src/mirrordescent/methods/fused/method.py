"""A method that steps by a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from mirrordescent.kernels import library
from mirrordescent.methods.base import Method
from mirrordescent.methods.equipped import Equipped
from mirrordescent.methods.fused.accelerated import AcceleratedKernel
from mirrordescent.methods.fused.kernel import TYPES, Kernel
from mirrordescent.methods.fused.primal_dual import PrimalDualKernel
from mirrordescent.methods.primal_dual import PDHG, PDHGState
from mirrordescent.methods.watching import Watching
from mirrordescent.oracles import Exact
from mirrordescent.trees import Tree

if TYPE_CHECKING:
    from mirrordescent.mirrors.base import MirrorMap
    from mirrordescent.oracles import Oracle
    from mirrordescent.problems.base import Problem

KERNELS: tuple[type[Kernel], ...] = (AcceleratedKernel, PrimalDualKernel)


class Fused(Method[Any]):
    """A method on total-variation problems, each step in one pass over the images.

    There is a kernel for AMD with a stencil for its map and rounded gradients, such as the entries of the zoo that end
    in ``-spectral``, for PDHG, and for the method of Condat and Vũ. The states and the numbers are those of the method
    but for rounding, and a step takes a fraction of the time. The kernels are in C, compiled when first asked for, in a
    few seconds, and kept in the cache; they are for CPUs, single and double precision, exact gradients, and
    problems without an operator. Elsewhere the method steps as it would without.

    Args:
        method: one of those.

    >>> from mirrordescent import zoo
    >>> Fused(zoo.load("mnist49-svm"))
    Traceback (most recent call last):
    TypeError: there are kernels for AMD with a Stencil and Rounded gradients, and for PDHG or CondatVu, not for MD
    """

    def __init__(self, method: Method[Any]) -> None:
        super().__init__()
        self.method, self.kernel = method, _kernel(method)
        library()  # now, and not in the middle of the first step

    @property
    def mirror(self) -> MirrorMap | None:
        """The map of the method, if it has one."""
        return getattr(self.method, "mirror", None)

    @property
    def oracle(self) -> Oracle | None:
        """The oracle of the method, if it has its own."""
        return getattr(self.method, "oracle", None)

    def init(self, x0: Tree) -> Any:
        """Start the method."""
        return self.method.init(x0)

    def begin(self, problem: Problem, x: Tensor, curvature: float | None = None) -> PDHGState:
        """Start a primal-dual method near a solution, as it does without a kernel."""
        if not isinstance(self.method, PDHG):
            raise TypeError(f"{type(self.method).__name__} has no dual variable to begin with")
        return self.method.begin(problem, x, curvature)

    def update(self, state: Any, grad: Tree) -> Any:
        """Update the method."""
        return self.method.update(state, grad)

    def step(self, problem: Problem, state: Any, oracle: Oracle, generator: Generator | None = None) -> Any:
        """Take a step by the kernel, or, where it cannot be used, by the method."""
        from mirrordescent.problems.tv import TVDenoising, TVInpainting  # problems are to the right of methods

        x = state.x
        asked = oracle.oracle if isinstance(oracle, Watching) else oracle
        if not (
            isinstance(problem, TVInpainting)
            and type(problem) in (TVInpainting, TVDenoising)  # another kind may have another objective
            and problem.operator is None
            and isinstance(x, Tensor)
            and (x.shape, x.dtype) == (problem.y.shape, problem.y.dtype)
            and x.device.type == "cpu"
            and x.dtype in TYPES
            and not torch.is_grad_enabled()
            and isinstance(asked, Exact)
        ):
            return self.method.step(problem, state, oracle, generator)
        return self.kernel.step(problem, state, oracle.means if isinstance(oracle, Watching) else None)

    def answer(self, state: Any) -> Tree:
        """Ask the method."""
        return self.method.answer(state)

    def inside(self, state: Any) -> Tensor | None:
        """Ask the method."""
        return self.method.inside(state)

    def lower_bound(self, problem: Problem, state: Any) -> Tensor | None:
        """Ask the method."""
        return self.method.lower_bound(problem, state)


def _kernel(method: Method[Any]) -> Kernel:
    for kind in KERNELS:
        kernel = kind.of(method)
        if kernel is not None:
            return kernel
    named = type(method.method if isinstance(method, Equipped) else method).__name__
    raise TypeError(f"there are kernels for {', and for '.join(kind.kind for kind in KERNELS)}, not for {named}")
