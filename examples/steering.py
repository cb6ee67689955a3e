"""Model-predictive control: steer a swinging mass back to rest with a bounded force, from wherever
it is now.
"""

import torch

import mirrordescent as md
from mirrordescent.domains import Box
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators


class Steering(ProblemFamily):
    """Forces u_1 … u_N in [−1, 1] that minimise Σ‖x_k‖² + 0.01‖u‖², x_{k+1} = Fx_k + Gu_k."""

    def __init__(self, steps=40, interval=0.2):
        F = torch.linalg.matrix_exp(interval * torch.tensor([[0.0, 1.0], [-1.0, -0.1]]))
        G = interval * F @ torch.tensor([0.0, 1.0])
        powers = [torch.linalg.matrix_power(F, k) for k in range(steps + 1)]
        blocks = [
            [powers[i - j] @ G if j <= i else torch.zeros(2) for j in range(steps)]
            for i in range(steps)
        ]
        states = torch.stack([torch.stack(row, 1) for row in blocks]).flatten(0, 1)
        self.A = torch.cat([states, 0.1 * torch.eye(steps)])
        self.free = torch.stack(powers[1:]).flatten(0, 1)

    def draw(self, seeds):
        start = torch.stack(
            [3 * torch.randn(2, generator=generator) for generator in generators(seeds)]
        )
        b = torch.cat([-start @ self.free.T, torch.zeros(len(start), self.A.shape[1])], 1)
        problem = md.LeastSquares(self.A, b, Box(-1.0, 1.0))
        return Draw(problem, problem.start())
