"""Problems: batches of functions to minimise."""

from mirrordescent.problems.base import Function, Problem
from mirrordescent.problems.linear_models import SVM, LogisticRegression
from mirrordescent.problems.networks import NetworkTraining
from mirrordescent.problems.operators import Blur, LinearOperator, gaussian_kernel
from mirrordescent.problems.quadratic import LeastSquares, Quadratic
from mirrordescent.problems.simplex import MatrixGame
from mirrordescent.problems.tomography import PoissonTomography
from mirrordescent.problems.tv import TVDenoising, TVInpainting

__all__ = [
    "SVM",
    "Blur",
    "Function",
    "LeastSquares",
    "LinearOperator",
    "LogisticRegression",
    "MatrixGame",
    "NetworkTraining",
    "PoissonTomography",
    "Problem",
    "Quadratic",
    "TVDenoising",
    "TVInpainting",
    "gaussian_kernel",
]
