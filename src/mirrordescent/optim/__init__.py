"""Mirror descent as ``torch.optim`` optimisers.

They run the methods of :mod:`mirrordescent.methods` with the gradients in ``p.grad``.
"""

from mirrordescent.optim.accelerated import AMD, ASMD
from mirrordescent.optim.base import MirrorOptimizer
from mirrordescent.optim.descent import MD, SMD
from mirrordescent.optim.options import Decoupled
from mirrordescent.optim.preconditioned import Preconditioned
from mirrordescent.optim.spectral_descent import SpectralDescent

__all__ = [
    "AMD",
    "ASMD",
    "MD",
    "SMD",
    "Decoupled",
    "MirrorOptimizer",
    "Preconditioned",
    "SpectralDescent",
]
