"""The support vector machine against scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from mirrordescent import SVM, certify


def fours_and_nines():
    digits = load_digits()
    keep = (digits.target == 4) | (digits.target == 9)
    features = torch.tensor(digits.data[keep] / 16.0)
    return features, torch.tensor(digits.target[keep] == 4).double() * 2 - 1


def random_data(n=400, d=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, d, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return features, (features[:, 0] + features[:, 1] + 0.7 + noise).sign()


@pytest.mark.parametrize("C", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("data", [fours_and_nines, random_data])
def test_agrees_with_libsvm(data, C):
    features, labels = data()
    problem = SVM(features, labels, C)
    reference = certify(problem, 1e-8)
    theirs = SVC(kernel="linear", C=C / len(labels), tol=1e-9).fit(features.numpy(), labels.numpy())
    theta = torch.tensor([[*theirs.coef_[0], theirs.intercept_[0]]])
    assert float(reference.value) == pytest.approx(float(problem.value(theta)), rel=1e-6)
    assert float(reference.relative_gap) <= 1e-8
    assert float(reference.lower) <= float(problem.value(theta))


def test_batched_data_are_solved_side_by_side():
    pairs = [random_data(seed=s) for s in range(3)]
    together = certify(
        SVM(torch.stack([f for f, _ in pairs]), torch.stack([y for _, y in pairs])), 1e-8
    )
    alone = torch.cat([certify(SVM(f, y), 1e-8).value for f, y in pairs])
    torch.testing.assert_close(together.value, alone, rtol=1e-6, atol=0)


def test_the_minimiser_satisfies_the_optimality_condition():
    """0 is in the subdifferential.

    Margins off the hinge have one slope, and margins on it an interval of slopes.
    """
    features, labels = random_data()
    problem = SVM(features, labels)
    theta = certify(problem, 1e-10).x
    margins = labels * (features @ theta[0, :-1] + theta[0, -1])
    on_hinge = (margins - 1).abs() < 1e-4
    fixed = problem.ridge * theta[0] - problem.signed[margins < 1 - 1e-4].sum(0) / len(labels)
    free = problem.signed[on_hinge] / len(labels)
    coefficients = torch.linalg.lstsq(free.T, fixed.unsqueeze(1)).solution.squeeze(1)
    assert on_hinge.sum() <= 12
    torch.testing.assert_close(free.T @ coefficients, fixed, rtol=0, atol=1e-4)
    assert (coefficients > -1e-3).all()
    assert (coefficients < 1 + 1e-3).all()


def test_one_class_only_has_optimum_zero():
    reference = certify(
        SVM(torch.randn(20, 3, dtype=torch.float64), torch.ones(20, dtype=torch.float64)), 1e-6
    )
    assert float(reference.value) == pytest.approx(0, abs=1e-5)


def test_a_tolerance_beyond_double_precision_ends_with_what_can_be_proven():
    problem = SVM(
        *(torch.stack(each) for each in zip(fours_and_nines(), fours_and_nines(), strict=True))
    )
    usual = certify(problem, 1e-8, cache=False)
    with pytest.warns(UserWarning, match="only, not 1.0e-15"):
        closest = certify(problem, 1e-15, cache=False)
    assert bool((closest.lower <= closest.value).all())
    assert float(closest.relative_gap.max()) < 1e-10
    assert bool((closest.lower >= usual.lower).all())
