"""Problems: batches of functions to minimise."""

from mirrordescent._internal.deprecation import renamed_attributes
from mirrordescent.problems.anchor import Anchor
from mirrordescent.problems.area_means import AreaMeans
from mirrordescent.problems.base import Function, Problem
from mirrordescent.problems.beam import ParallelBeam
from mirrordescent.problems.composite import Composite
from mirrordescent.problems.fits import Counts, SquaredError
from mirrordescent.problems.games import MatrixGame
from mirrordescent.problems.grid_tv import GridTV
from mirrordescent.problems.learned_ridges import LearnedRidges
from mirrordescent.problems.linear_models import SVM, LogisticRegression
from mirrordescent.problems.network_training import NetworkTraining
from mirrordescent.problems.operators import (
    Blur,
    Chain,
    Linear,
    Matrix,
    Multiple,
    Sampling,
    gaussian_kernel,
    motion_kernel,
)
from mirrordescent.problems.outside_operators import ArrayOperator, SparseMatrix, as_operator
from mirrordescent.problems.prior_problems import prior_denoising, prior_restoration
from mirrordescent.problems.profiles import RidgeProfile
from mirrordescent.problems.programs import QP
from mirrordescent.problems.quadratics import LeastSquares, Quadratic
from mirrordescent.problems.ridge_priors import RidgePrior, RidgeTable
from mirrordescent.problems.terms import L1, Ridge, Term
from mirrordescent.problems.tomography import PoissonTomography
from mirrordescent.problems.transforms import Fourier, Haar, radial_mask
from mirrordescent.problems.transport import EntropicTransport
from mirrordescent.problems.trends import Trend, TrendFiltering
from mirrordescent.problems.tv import TVDenoising, TVInpainting
from mirrordescent.problems.variation import TV, Roughness

__all__ = [
    "L1",
    "QP",
    "SVM",
    "TV",
    "Anchor",
    "AreaMeans",
    "ArrayOperator",
    "Blur",
    "Chain",
    "Composite",
    "Counts",
    "EntropicTransport",
    "Fourier",
    "Function",
    "GridTV",
    "Haar",
    "LearnedRidges",
    "LeastSquares",
    "Linear",
    "LogisticRegression",
    "Matrix",
    "MatrixGame",
    "Multiple",
    "NetworkTraining",
    "ParallelBeam",
    "PoissonTomography",
    "Problem",
    "Quadratic",
    "Ridge",
    "RidgePrior",
    "RidgeProfile",
    "RidgeTable",
    "Roughness",
    "Sampling",
    "SparseMatrix",
    "SquaredError",
    "TVDenoising",
    "TVInpainting",
    "Term",
    "Trend",
    "TrendFiltering",
    "as_operator",
    "gaussian_kernel",
    "motion_kernel",
    "prior_denoising",
    "prior_restoration",
    "radial_mask",
]

__getattr__ = renamed_attributes(
    __name__,
    {
        "Fit": "mirrordescent.problems.fits:Fit",
        "Initialisation": "mirrordescent.problems.network_training:Initialisation",
        "LinearOperator": "mirrordescent.problems.operators:LinearOperator",
    },
)
