from __future__ import annotations

import pytest
import torch
from sklearn.svm import LinearSVC

from mirrordescent.data import DataMissing, digits, four_nine_features
from mirrordescent.problems import SVM


def accuracy(features):
    """Let scikit-learn's machine classify the test part."""
    machine = LinearSVC(C=1.0, dual=False).fit(
        features.train.numpy(), features.train_labels.numpy()
    )
    return machine.score(features.test.numpy(), features.test_labels.numpy())


def check_scale_and_rank(features):
    assert float(features.train.square().mean()) == pytest.approx(1, rel=1e-4)
    assert int(torch.linalg.matrix_rank(features.train.double())) == 50


def test_features_of_the_digits_of_scikit_learn():
    state = torch.get_rng_state()
    features = four_nine_features("digits", epochs=4)
    assert torch.equal(state, torch.get_rng_state())
    for split, labels in (("train", features.train_labels), ("test", features.test_labels)):
        original = digits(split)[1]
        assert labels.tolist() == [
            1.0 if label == 9 else -1.0 for label in original if label in (4, 9)
        ]
    check_scale_and_rank(features)
    assert accuracy(features) > 0.93
    assert SVM(features.train, features.train_labels).value(torch.zeros(1, 51)) == pytest.approx(1)


def test_features_are_kept_and_follow_the_seed(monkeypatch):
    first = four_nine_features("digits", epochs=1)
    other = four_nine_features("digits", epochs=1, seed=1)
    assert not torch.equal(first.train, other.train)

    def fail(*arguments):
        raise AssertionError("computed again")

    monkeypatch.setattr("mirrordescent.data.digit_features._compute", fail)
    again = four_nine_features("digits", epochs=1)
    assert all(torch.equal(old, new) for old, new in zip(first, again, strict=True))


def test_features_of_mnist(real_data):
    features = four_nine_features("mnist", directory=real_data)
    assert features.train.shape == (11791, 50)
    assert features.test.shape == (1991, 50)
    assert features.train_labels.shape == (11791,)
    check_scale_and_rank(features)
    assert accuracy(features) > 0.985


def test_what_cannot_be_had_is_told(no_data, monkeypatch):
    def offline(*arguments, **options):
        raise ConnectionError("no route")

    monkeypatch.setattr("mirrordescent.data.download.download", offline)
    with pytest.raises(DataMissing, match=r"train-images-idx3-ubyte.gz"):
        four_nine_features("mnist")
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        four_nine_features("minst")
