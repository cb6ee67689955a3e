"""Mirror maps: the geometry in which a method takes its steps."""

from mirrordescent.mirrors.barriers import Burg, Logit
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.mirrors.entropy import HyperbolicEntropy, NegativeEntropy, SimplexEntropy
from mirrordescent.mirrors.norms import PNorm, SquaredPNorm
from mirrordescent.mirrors.quadratic import Diagonal, Euclidean

__all__ = [
    "Burg",
    "Diagonal",
    "Euclidean",
    "HyperbolicEntropy",
    "Logit",
    "MirrorMap",
    "NegativeEntropy",
    "PNorm",
    "SimplexEntropy",
    "SquaredPNorm",
    "StrongConvexity",
]
