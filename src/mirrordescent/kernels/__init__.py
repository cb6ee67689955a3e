"""Loops in C for what takes several passes over memory in torch, built on request by the machine's
own compiler.
"""

from mirrordescent.kernels.build import BuildError, library, ready, without
from mirrordescent.kernels.call import TYPES, Function, addresses, suits
from mirrordescent.kernels.image_steps import (
    amd_stencil,
    close_holes,
    dual_fista,
    dual_value,
    hole_depths,
    image_sums,
    numbers,
    primal_dual,
)
from mirrordescent.kernels.matrix_directions import directions, has_directions
from mirrordescent.kernels.moments import adapted, has_moments, momenta
from mirrordescent.kernels.powers import has_powers, powers

__all__ = [
    "TYPES",
    "BuildError",
    "Function",
    "adapted",
    "addresses",
    "amd_stencil",
    "close_holes",
    "directions",
    "dual_fista",
    "dual_value",
    "has_directions",
    "has_moments",
    "has_powers",
    "hole_depths",
    "image_sums",
    "library",
    "momenta",
    "numbers",
    "powers",
    "primal_dual",
    "ready",
    "suits",
    "without",
]
