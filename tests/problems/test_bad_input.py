"""Invalid data raise an error that names the argument."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import SVM, Function, LeastSquares, LogisticRegression, MatrixGame, Quadratic

NAN = float("nan")
CASES = [
    (lambda: Quadratic(torch.tensor([1.0, NAN]), torch.zeros(2)), ValueError, "A has NaN"),
    (lambda: Quadratic(torch.ones(2), torch.tensor([0.0, NAN])), ValueError, "centre has NaN"),
    (lambda: Quadratic(torch.ones(2), torch.zeros(3)), ValueError, "centre has shape"),
    (
        lambda: Quadratic(torch.ones(2), torch.zeros(2).double()),
        TypeError,
        "A and centre must share",
    ),
    (
        lambda: Quadratic(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.zeros(2)),
        ValueError,
        "symmetric",
    ),
    (lambda: Quadratic(torch.ones(2, 3), torch.zeros(3)), ValueError, "A must be"),
    (lambda: Quadratic(torch.ones(2), torch.zeros(0, 2)), ValueError, "empty batch"),
    (lambda: LeastSquares(torch.ones(3, 2), torch.ones(2)), ValueError, "b has shape"),
    (lambda: LeastSquares(torch.ones(3), torch.ones(3)), ValueError, "A must be"),
    (lambda: LeastSquares(torch.ones(3, 2), torch.full((3,), torch.inf)), ValueError, "b has NaN"),
    (
        lambda: LogisticRegression(torch.ones(3, 2), torch.tensor([1.0, 0.0, 1.0])),
        ValueError,
        "labels must",
    ),
    (lambda: LogisticRegression(torch.ones(3, 2), torch.ones(3), ridge=-1), ValueError, "ridge"),
    (lambda: SVM(torch.ones(3, 2), torch.ones(4)), ValueError, "labels have shape"),
    (lambda: SVM(torch.ones(3, 2), torch.ones(3), C=0), ValueError, "C must be positive"),
    (lambda: SVM(torch.ones(0, 2), torch.ones(0)), ValueError, "not empty"),
    (lambda: MatrixGame(torch.ones(3)), ValueError, "A must be"),
    (lambda: MatrixGame(torch.tensor([[NAN]])), ValueError, "A has NaN"),
    (
        lambda: Function(lambda x: x.sum()).value(torch.ones(2, 3)),
        ValueError,
        r"must return shape \(2,\)",
    ),
    (lambda: Function(lambda x: x.sum(-1)).start(), ValueError, "give x0"),
]


@pytest.mark.parametrize(("make", "error", "message"), CASES)
def test_refused_with_the_name(make, error, message):
    with pytest.raises(error, match=message):
        make()
