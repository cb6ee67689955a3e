"""Model-predictive control of a quadcopter, written in CVXPY: thrusts that bring it to a height."""

import cvxpy as cp
import numpy as np
import torch

import mirrordescent as md

HORIZON = 10
HOVER = 10.5916
"""Thrust at which the quadcopter hovers."""

GOAL = np.array([0, 0, 1.0] + 9 * [0])
WEIGHTS = np.array([0, 0, 10, 10, 10, 10, 0, 0, 0, 5, 5, 5.0])


def dynamics():
    """Return F and G of x_{k+1} = Fx_k + Gu_k: angles, positions and their velocities."""
    F = np.eye(12)
    F[:3, 6:9] = 0.1 * np.eye(3)
    F[3, [0, 6]] = 0.0488, 0.0016
    F[4, [1, 7]] = -0.0488, -0.0016
    F[3:6, 9:] = 0.0992 * np.eye(3)
    F[9, [0, 6]] = 0.9734, 0.0488
    F[10, [1, 7]] = -0.9734, -0.0488
    F[9:, 9:] = 0.9846 * np.eye(3)
    pitch = np.array([0, -1, 0, 1])
    roll = np.array([-1, 0, 1, 0])
    yaw = np.array([-1, 1, -1, 1])
    lift = np.ones(4)
    turn = [0.0726 * pitch, 0.0726 * roll, 0.0152 * yaw]
    move = [0.0006 * pitch, -0.0006 * roll, 0.0106 * lift]
    turn_rates = [1.4512 * pitch, 1.4512 * roll, 0.3049 * yaw]
    rates = [0.0236 * pitch, -0.0236 * roll, 0.2107 * lift]
    return F, np.stack([*turn, *move, *turn_rates, *rates])


def control_problem():
    """Return the problem of CVXPY; its parameter is the present state."""
    F, G = dynamics()
    flat = cp.Variable(12 * (HORIZON + 1), name="x")  # as a vector, squares need no new variables
    x = cp.reshape(flat, (HORIZON + 1, 12), order="C")
    u = cp.Variable((HORIZON, 4), name="u")
    present = cp.Parameter(12, name="present")
    squares = cp.quad_form(flat, np.diag(np.tile(WEIGHTS, HORIZON + 1)))
    cost = squares / 2 - cp.sum(x @ (WEIGHTS * GOAL))
    return cp.Problem(
        cp.Minimize(cost + 0.05 * cp.sum_squares(u)),
        [
            x[0] == present,
            x[1:] == x[:-1] @ F.T + u @ G.T,
            u >= 9.6 - HOVER,
            u <= 13 - HOVER,
            x[1:, :2] >= -np.pi / 6,
            x[1:, :2] <= np.pi / 6,
            x[1:, 5] >= -1,
        ],
    )


def present_state(generator):
    """Return a random state: angles and positions, then velocities."""
    sizes = torch.tensor([0.3] * 6 + [0.2] * 6)
    return {"present": sizes * (2 * torch.rand(12, generator=generator) - 1)}


def Quadcopter():
    """Return the family of control problems with random states."""
    return md.from_cvxpy(control_problem(), present_state, torch.float64)


family = Quadcopter()
