"""Logistic regression on bootstrap samples of the breast-cancer data.

The spread of the coefficients over the samples measures their uncertainty.
"""

import torch
from sklearn.datasets import load_breast_cancer

import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators


class Bootstraps(ProblemFamily):
    def __init__(self):
        features, labels = load_breast_cancer(return_X_y=True)
        features = (features - features.mean(0)) / features.std(0)
        self.features = torch.tensor(features).float()
        self.labels = torch.tensor(2.0 * labels - 1).float()

    def draw(self, seeds):
        size = len(self.labels)
        rows = torch.stack(
            [torch.randint(size, (size,), generator=generator) for generator in generators(seeds)]
        )
        problem = md.LogisticRegression(self.features[rows], self.labels[rows], ridge=1e-3)
        return Draw(problem, problem.start())
