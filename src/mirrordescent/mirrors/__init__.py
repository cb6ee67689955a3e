"""Mirror maps: the geometry in which a method takes its steps."""

from mirrordescent.mirrors.barriers import Burg, Logit
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.mirrors.entropy import HyperbolicEntropy, NegativeEntropy, SimplexEntropy
from mirrordescent.mirrors.icnn import ConvICNN, DenseICNN, Potential
from mirrordescent.mirrors.inverse import Inversion, NotConverged, invert
from mirrordescent.mirrors.learned import Conjugate, LearnedPair
from mirrordescent.mirrors.norms import PNorm, SquaredPNorm
from mirrordescent.mirrors.quadratic import Diagonal, Euclidean

__all__ = [
    "Burg",
    "Conjugate",
    "ConvICNN",
    "DenseICNN",
    "Diagonal",
    "Euclidean",
    "HyperbolicEntropy",
    "Inversion",
    "LearnedPair",
    "Logit",
    "MirrorMap",
    "NegativeEntropy",
    "NotConverged",
    "PNorm",
    "Potential",
    "SimplexEntropy",
    "SquaredPNorm",
    "StrongConvexity",
    "invert",
]
