"""Mirror maps: the geometry in which a method takes its steps."""

from mirrordescent._internal.deprecation import renamed_attributes
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.mirrors.by_kind import ByKind, spectral_by_kind
from mirrordescent.mirrors.dense import DenseQuadratic
from mirrordescent.mirrors.entropy import (
    Burg,
    HyperbolicEntropy,
    Logit,
    NegativeEntropy,
    OrthantEntropy,
    SimplexEntropy,
)
from mirrordescent.mirrors.icnn import ConvICNN, DenseICNN
from mirrordescent.mirrors.layerwise import Layerwise, layerwise, transfer
from mirrordescent.mirrors.learned import Conjugate, LearnedPair
from mirrordescent.mirrors.module_roles import roles_of
from mirrordescent.mirrors.norms import PNorm, SquaredPNorm
from mirrordescent.mirrors.odd import SoftSign
from mirrordescent.mirrors.quadratic import Diagonal, Euclidean
from mirrordescent.mirrors.roles import Role, roles, roles_by_name
from mirrordescent.mirrors.singular_values import SingularValues, SpectralPower
from mirrordescent.mirrors.spectral import Spectral, SpectralSpline
from mirrordescent.mirrors.spline import Spline
from mirrordescent.mirrors.stencil import Stencil
from mirrordescent.mirrors.symmetry import symmetries
from mirrordescent.mirrors.tied import Multipliers
from mirrordescent.mirrors.weighted import Weighted

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
    "Layerwise",
    "LearnedPair",
    "Logit",
    "MirrorMap",
    "Multipliers",
    "NegativeEntropy",
    "OrthantEntropy",
    "PNorm",
    "Role",
    "SimplexEntropy",
    "SingularValues",
    "SoftSign",
    "Spectral",
    "SpectralPower",
    "SpectralSpline",
    "Spline",
    "SquaredPNorm",
    "Stencil",
    "StrongConvexity",
    "Weighted",
    "layerwise",
    "roles",
    "roles_by_name",
    "roles_of",
    "spectral_by_kind",
    "symmetries",
    "transfer",
]

__getattr__ = renamed_attributes(
    __name__,
    {
        "Inversion": "mirrordescent.mirrors.inverse:Inversion",
        "KroneckerQuadratic": "mirrordescent.mirrors.dense:KroneckerQuadratic",
        "LowRankQuadratic": "mirrordescent.mirrors.dense:LowRankQuadratic",
        "NotConverged": "mirrordescent.mirrors.inverse:NotConverged",
        "Potential": "mirrordescent.mirrors.icnn:Potential",
        "Saturating": "mirrordescent.mirrors.odd:Saturating",
        "ScaledMap": "mirrordescent.mirrors.by_kind:ScaledMap",
        "SpectralBall": "mirrordescent.mirrors.singular_values:SpectralBall",
        "Symmetry": "mirrordescent.mirrors.symmetry:Symmetry",
        "Tied": "mirrordescent.mirrors.tied:Tied",
        "WeightedSimplexEntropy": "mirrordescent.mirrors.weighted:WeightedSimplexEntropy",
        "check_equivariance": "mirrordescent.mirrors.symmetry:check_equivariance",
        "invert": "mirrordescent.mirrors.inverse:invert",
        "permute": "mirrordescent.mirrors.symmetry:permute",
    },
)
