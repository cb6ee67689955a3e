"""Logistic regression with an ℓ1 penalty, which selects features, on bootstrap samples."""

import torch
from sklearn.datasets import load_breast_cancer

import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators


class SparseLogistic(ProblemFamily):
    """Samples of the breast-cancer data, each with the penalty 0.01‖w‖₁."""

    def __init__(self, size=300):
        features, labels = load_breast_cancer(return_X_y=True)
        features = (features - features.mean(0)) / features.std(0)
        self.features = torch.tensor(features).float()
        self.labels = torch.tensor(2.0 * labels - 1).float()
        self.size = size

    def draw(self, seeds):
        rows = torch.stack(
            [
                torch.randint(len(self.labels), (self.size,), generator=generator)
                for generator in generators(seeds)
            ]
        )
        loss = md.LogisticRegression(self.features[rows], self.labels[rows])
        problem = md.Composite(loss, [md.L1(0.01)])
        return Draw(problem, problem.start())
