"""Solvers of other packages that ``md.auto`` compares its own with.

Packages are optional: ``pip install 'mirrordescent[rivals]'``. A solver takes part if its package
is installed and the problems have the form that it needs.
"""

# These modules register the solvers of this package.
from mirrordescent.rivals import (
    linear_models as linear_models,
    quadratic as quadratic,
    smooth as smooth,
    transport as transport,
)
from mirrordescent.rivals.forms import DenseProgram, program_of, quadratic_of
from mirrordescent.rivals.registry import Rival, as_rival, known_rivals, register

__all__ = [
    "DenseProgram",
    "Rival",
    "as_rival",
    "known_rivals",
    "program_of",
    "quadratic_of",
    "register",
]
