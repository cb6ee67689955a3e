"""Mirror maps: the geometry in which a method takes its steps."""

from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.mirrors.entropy import (
    Burg,
    HyperbolicEntropy,
    Logit,
    NegativeEntropy,
    OrthantEntropy,
    SimplexEntropy,
)
from mirrordescent.mirrors.icnn import ConvICNN, DenseICNN, Potential
from mirrordescent.mirrors.inverse import Inversion, NotConverged, invert
from mirrordescent.mirrors.layerwise import Layerwise, layerwise, transfer
from mirrordescent.mirrors.learned import Conjugate, LearnedPair
from mirrordescent.mirrors.norms import PNorm, SquaredPNorm
from mirrordescent.mirrors.quadratic import Diagonal, Euclidean
from mirrordescent.mirrors.spectral import Spectral, SpectralSpline
from mirrordescent.mirrors.spline import Spline
from mirrordescent.mirrors.stencil import Stencil
from mirrordescent.mirrors.symmetry import Symmetry, check_equivariance, permute, symmetries
from mirrordescent.mirrors.tied import Multipliers, Tied

__all__ = [
    "Burg", "Conjugate", "ConvICNN", "DenseICNN", "Diagonal", "Euclidean", "HyperbolicEntropy", "Inversion",
    "Layerwise", "LearnedPair", "Logit", "MirrorMap", "Multipliers", "NegativeEntropy", "NotConverged",
    "OrthantEntropy", "PNorm", "Potential", "SimplexEntropy", "Spectral", "SpectralSpline", "Spline", "SquaredPNorm",
    "Stencil", "StrongConvexity", "Symmetry", "Tied", "check_equivariance", "invert", "layerwise", "permute",
    "symmetries", "transfer",
]  # fmt: skip
