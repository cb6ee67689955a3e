"""Mirror maps: the geometry in which a method takes its steps."""

from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.mirrors.by_kind import ByKind, ScaledMap, spectral_by_kind
from mirrordescent.mirrors.dense import DenseQuadratic, KroneckerQuadratic, LowRankQuadratic
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
from mirrordescent.mirrors.odd import Saturating, SoftSign
from mirrordescent.mirrors.quadratic import Diagonal, Euclidean
from mirrordescent.mirrors.roles import Role, roles, roles_of
from mirrordescent.mirrors.singular_values import SingularValues, SpectralBall, SpectralPower
from mirrordescent.mirrors.spectral import Spectral, SpectralSpline
from mirrordescent.mirrors.spline import Spline
from mirrordescent.mirrors.stencil import Stencil
from mirrordescent.mirrors.symmetry import Symmetry, check_equivariance, permute, symmetries
from mirrordescent.mirrors.tied import Multipliers, Tied
from mirrordescent.mirrors.weighted import Weighted, WeightedSimplexEntropy

__all__ = [
    "Burg",
    "ByKind",
    "Conjugate",
    "ConvICNN",
    "DenseICNN",
    "DenseQuadratic",
    "Diagonal",
    "Euclidean",
    "HyperbolicEntropy",
    "Inversion",
    "KroneckerQuadratic",
    "Layerwise",
    "LearnedPair",
    "Logit",
    "LowRankQuadratic",
    "MirrorMap",
    "Multipliers",
    "NegativeEntropy",
    "NotConverged",
    "OrthantEntropy",
    "PNorm",
    "Potential",
    "Role",
    "Saturating",
    "ScaledMap",
    "SimplexEntropy",
    "SingularValues",
    "SoftSign",
    "Spectral",
    "SpectralBall",
    "SpectralPower",
    "SpectralSpline",
    "Spline",
    "SquaredPNorm",
    "Stencil",
    "StrongConvexity",
    "Symmetry",
    "Tied",
    "Weighted",
    "WeightedSimplexEntropy",
    "check_equivariance",
    "invert",
    "layerwise",
    "permute",
    "roles",
    "roles_of",
    "spectral_by_kind",
    "symmetries",
    "transfer",
]
