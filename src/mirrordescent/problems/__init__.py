"""Problems: batches of functions to minimise."""

from mirrordescent.problems.base import Function, Problem
from mirrordescent.problems.beam import ParallelBeam
from mirrordescent.problems.linear_models import SVM, LogisticRegression
from mirrordescent.problems.matrices import LeastSquares, MatrixGame, Quadratic
from mirrordescent.problems.networks import Initialisation, NetworkTraining
from mirrordescent.problems.operators import Blur, LinearOperator, gaussian_kernel, motion_kernel
from mirrordescent.problems.tomography import PoissonTomography
from mirrordescent.problems.tv import TVDenoising, TVInpainting

__all__ = [
    "SVM", "Blur", "Function", "Initialisation", "LeastSquares", "LinearOperator", "LogisticRegression", "MatrixGame",
    "NetworkTraining", "ParallelBeam", "PoissonTomography", "Problem", "Quadratic", "TVDenoising", "TVInpainting",
    "gaussian_kernel", "motion_kernel",
]  # fmt: skip
