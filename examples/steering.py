"""Model-predictive control: bring a swinging mass to rest with a bounded force."""

import torch

import mirrordescent as md
from mirrordescent.domains import Box
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators


class Steering(ProblemFamily):
    """Forces u_1, …, u_N in [−1, 1] that minimise Σ‖x_k‖² + 0.01‖u‖², where x_{k+1} = Fx_k + Gu_k.

    The initial states x_0 are random.
    """

    def __init__(self, steps=40, interval=0.2):
        F = torch.linalg.matrix_exp(interval * torch.tensor([[0.0, 1.0], [-1.0, -0.1]]))
        G = interval * F @ torch.tensor([0.0, 1.0])
        powers = [torch.linalg.matrix_power(F, k) for k in range(steps + 1)]
        responses = torch.zeros(steps, 2, steps)  # of state i + 1 to force j
        for i in range(steps):
            for j in range(i + 1):
                responses[i, :, j] = powers[i - j] @ G
        self.A = torch.cat([responses.flatten(0, 1), 0.1 * torch.eye(steps)])
        self.free = torch.stack(powers[1:]).flatten(0, 1)

    def draw(self, seeds):
        start = torch.stack([3 * torch.randn(2, generator=g) for g in generators(seeds)])
        b = torch.cat([-start @ self.free.T, torch.zeros(len(start), self.A.shape[1])], 1)
        problem = md.LeastSquares(self.A, b, Box(-1.0, 1.0))
        return Draw(problem, problem.start())
