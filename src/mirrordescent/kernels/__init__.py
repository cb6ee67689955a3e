"""C kernels for loops that take several passes over memory in torch.

They are compiled when the package is built, once for every level of a processor. The fastest level
that the processor supports is chosen when the library is loaded.
"""

from mirrordescent._internal.deprecation import renamed_attributes
from mirrordescent.kernels.call import (
    TYPES as TYPES,
    KernelFunction as KernelFunction,
    addresses as addresses,
    supports as supports,
    tracked as tracked,
)
from mirrordescent.kernels.image_steps import (
    AMD_COLUMNS as AMD_COLUMNS,
    amd_stencil as amd_stencil,
    close_holes as close_holes,
    dual_fista as dual_fista,
    dual_value as dual_value,
    hole_depths as hole_depths,
    image_sums as image_sums,
    numbers as numbers,
    primal_dual as primal_dual,
)
from mirrordescent.kernels.loading import (
    KernelsUnavailable,
    available,
    disabled,
    level,
    library,
    supported_levels,
)
from mirrordescent.kernels.preconditioning import (
    adaptive_step as adaptive_step,
    directions as directions,
    has_directions as has_directions,
    has_moments as has_moments,
    has_powers as has_powers,
    momenta as momenta,
    powers as powers,
)
from mirrordescent.kernels.ridge_sums import (
    ridge_gradient as ridge_gradient,
    ridge_sums as ridge_sums,
    ridge_sums_and_gradient as ridge_sums_and_gradient,
)

__all__ = [
    "KernelsUnavailable",
    "available",
    "disabled",
    "level",
    "library",
    "supported_levels",
]

__getattr__ = renamed_attributes(
    __name__,
    {
        "BuildError": "KernelsUnavailable",
        "adapted": "adaptive_step",
        "ready": "available",
        "suits": "supports",
        "without": "disabled",
    },
)
