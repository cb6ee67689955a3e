"""C kernels for loops that take several passes over memory in torch.

They are compiled on request by the C compiler of the machine, and kept in the cache.
"""

from mirrordescent._internal.deprecation import renamed_attributes
from mirrordescent.kernels.build import BuildError, available, disabled, library
from mirrordescent.kernels.call import TYPES, Function, addresses, supports
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
from mirrordescent.kernels.preconditioning import (
    adaptive_step,
    directions,
    has_directions,
    has_moments,
    has_powers,
    momenta,
    powers,
)

__all__ = [
    "TYPES",
    "BuildError",
    "Function",
    "adaptive_step",
    "addresses",
    "amd_stencil",
    "available",
    "close_holes",
    "directions",
    "disabled",
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
    "supports",
]

__getattr__ = renamed_attributes(
    __name__,
    {
        "adapted": "adaptive_step",
        "ready": "available",
        "suits": "supports",
        "without": "disabled",
    },
)
