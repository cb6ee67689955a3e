"""Warm starts on video: denoise a window that moves over a noisy photograph.

Every window is solved from scratch and from the state of the previous window.
"""

import torch

import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.trees import map_tensors

SETTINGS = {
    "state shifted with the window": (True, 0.0),
    "state unchanged": (False, 0.0),
    "state shifted, new noise in every window": (True, 0.05),
}
"""Whether to shift the state, and the standard deviation of additional noise."""


class Windows(ProblemFamily):
    noisy = md.data.bundled_photographs("test")[0].mean(0, keepdim=True)[:, 100:228]
    noisy = noisy + 0.1 * torch.randn(noisy.shape, generator=torch.Generator().manual_seed(0))

    def draw(self, seeds, more_noise=0.0):
        lefts = (seeds % 300).tolist()
        windows = torch.stack([self.noisy[:, :, left : left + 128] for left in lefts])
        noise = torch.randn(windows.shape, generator=torch.Generator().manual_seed(int(seeds[0])))
        problem = md.TVDenoising(windows + more_noise * noise, 0.2, isotropic=True)
        return Draw(problem, problem.start())


def stream(method, shift, more_noise, frames=60):
    """Return the mean iterations of cold starts and of warm starts, and the speed-up in time."""
    cold_cost = torch.zeros(2)
    warm_cost = torch.zeros(2)
    state = None
    for frame in range(frames):
        problem = Windows().draw(torch.tensor([frame]), more_noise).problem
        options = {
            "iterations": 2000,
            "check_every": 2,
            "stop": md.gap(1e-3, start_value=problem.value(problem.start())),
        }
        cold = md.solve(problem, method, **options)
        warm = cold
        if state is not None:
            warm = md.solve(problem, method, state=state, **options)
            cold_cost += torch.tensor([float(cold.steps), cold.seconds])
            warm_cost += torch.tensor([float(warm.steps), warm.seconds])
        state = warm.state
        if shift:
            # The window moves by one pixel, and so do the solution and its dual variable.
            state = map_tensors(lambda tensor: tensor.roll(-1, -1), state)
    windows = frames - 1
    return (
        float(cold_cost[0] / windows),
        float(warm_cost[0] / windows),
        float(cold_cost[1] / warm_cost[1]),
    )


if __name__ == "__main__":
    for name, (shift, more_noise) in SETTINGS.items():
        print(name, stream(md.PDHG(0.5), shift, more_noise))
