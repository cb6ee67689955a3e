"""Data and operators of NumPy, SciPy, PyLops and torch CSR give the results of dense tensors."""

import inspect

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import aslinearoperator

import mirrordescent as md
from mirrordescent import zoo
from mirrordescent.problems import L1, Matrix, SparseMatrix, as_operator

RNG = np.random.default_rng(0)
A = RNG.normal(size=(6, 4)) * (RNG.random((6, 4)) < 0.5)
Y = RNG.normal(size=(3, 6))
X = RNG.normal(size=(3, 4))


def _pylops():
    return pytest.importorskip("pylops").MatrixMult(A)


FORMS = {
    "array": lambda: A,
    "tensor": lambda: torch.tensor(A),
    "csr": lambda: sp.csr_matrix(A),
    "csc array": lambda: sp.csc_array(A),
    "coo": lambda: sp.coo_matrix(A),
    "torch csr": lambda: as_operator(sp.csr_matrix(A)).matrix(torch.zeros(1, dtype=torch.float64)),
    "torch coo": lambda: torch.tensor(A).to_sparse(),
    "scipy operator": lambda: aslinearoperator(A),
    "pylops": _pylops,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_an_operator_gives_the_products_of_the_matrix(form):
    operator = as_operator(form())
    np.testing.assert_allclose(operator.A(torch.tensor(X)), X @ A.T, atol=1e-14)
    np.testing.assert_allclose(operator.A_adjoint(torch.tensor(Y)), Y @ A, atol=1e-14)
    fit = md.SquaredError(torch.tensor(Y), form())
    np.testing.assert_allclose(
        fit.value(torch.tensor(X)), 0.5 * ((X @ A.T - Y) ** 2).sum(1), rtol=1e-12
    )
    composite = md.Composite(fit, [L1(0.1, form()), md.NonNegative()])
    dense = md.Composite(md.SquaredError(Y, A), [L1(0.1, Matrix(A)), md.NonNegative()])
    x = torch.tensor(abs(X))
    torch.testing.assert_close(composite.value(x), dense.value(x))
    torch.testing.assert_close(composite.grad(x), dense.grad(x))


def test_a_sparse_matrix_is_stored_and_differentiated(tmp_path):
    operator = SparseMatrix(sp.csr_matrix(A))
    loaded = zoo.load(zoo.save(md.SquaredError(torch.tensor(Y), operator), tmp_path / "fit"))
    x = torch.tensor(X, requires_grad=True)
    torch.testing.assert_close(loaded.value(x), md.SquaredError(Y, A).value(x))
    (slope,) = torch.autograd.grad(loaded.value(x).sum(), x)
    torch.testing.assert_close(slope, loaded.grad(x.detach()))
    assert operator.norm == pytest.approx(np.linalg.norm(A, 2), rel=0.06)
    assert operator.norm >= np.linalg.norm(A, 2)


def test_operators_of_numpy_refuse_derivatives():
    operator = as_operator(aslinearoperator(A))
    with pytest.raises(TypeError, match="derivatives do not pass through"):
        operator.A(torch.tensor(X, requires_grad=True))


def test_what_is_no_operator_is_named():
    with pytest.raises(TypeError, match=r"methods A and A_adjoint.*got dict"):
        md.SquaredError(Y, {})


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (md.LeastSquares, (A, Y[0])),
        (md.Quadratic, (np.eye(4), X)),
        (md.MatrixGame, (A,)),
        (md.LogisticRegression, (A, np.array([1, -1, 1, 1, -1, 1]))),
        (md.SVM, (A, np.array([1.0, -1, 1, 1, -1, 1]))),
        (md.SquaredError, (Y,)),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_numpy_arrays_are_data(make, arguments):
    problem = make(*arguments)
    same = make(*(torch.tensor(each, dtype=torch.float64) for each in arguments))
    x = problem.start(3) if "batch" in inspect.signature(problem.start).parameters else X
    torch.testing.assert_close(problem.value(x), same.value(x))


def test_a_sparse_matrix_where_a_dense_one_is_needed_says_what_to_do():
    with pytest.raises(TypeError, match=r"A is a SciPy sparse matrix.*toarray"):
        md.LeastSquares(sp.csr_matrix(A), Y[0])
    with pytest.raises(TypeError, match=r"b must be a tensor or an array .*, got list"):
        md.LeastSquares(A, [1.0])
