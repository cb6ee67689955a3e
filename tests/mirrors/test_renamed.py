"""Names that left the package keep working, with a warning."""

from __future__ import annotations

import pytest

from mirrordescent import mirrors
from mirrordescent.mirrors.by_kind import ScaledMap
from mirrordescent.mirrors.dense import KroneckerQuadratic, LowRankQuadratic
from mirrordescent.mirrors.icnn import Potential
from mirrordescent.mirrors.inverse import Inversion, NotConverged, invert
from mirrordescent.mirrors.odd import Saturating
from mirrordescent.mirrors.singular_values import SpectralBall
from mirrordescent.mirrors.symmetry import Symmetry, check_equivariance, permute
from mirrordescent.mirrors.tied import Tied
from mirrordescent.mirrors.weighted import WeightedSimplexEntropy

MOVED = [
    Inversion,
    KroneckerQuadratic,
    LowRankQuadratic,
    NotConverged,
    Potential,
    Saturating,
    ScaledMap,
    SpectralBall,
    Symmetry,
    Tied,
    WeightedSimplexEntropy,
    check_equivariance,
    invert,
    permute,
]


@pytest.mark.parametrize("moved", MOVED, ids=lambda moved: moved.__name__)
def test_names_that_left_the_package(moved):
    assert moved.__name__ not in mirrors.__all__
    with pytest.warns(DeprecationWarning, match=rf"{moved.__module__}\.{moved.__name__}"):
        assert getattr(mirrors, moved.__name__) is moved
