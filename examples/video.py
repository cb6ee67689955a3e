"""A window that moves over a noisy photograph: what is gained by going on with the state of the
window before?
"""

import torch

import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.trees import map_tensors

WAYS = {
    "state moved along": (True, 0.0),
    "state as it is": (False, 0.0),
    "moved, new noise each time": (True, 0.05),
}


class Windows(ProblemFamily):
    noisy = md.data.bundled_photographs("test")[0].mean(0, keepdim=True)[:, 100:228]
    noisy = noisy + 0.1 * torch.randn(noisy.shape, generator=torch.Generator().manual_seed(0))

    def draw(self, seeds, more_noise=0.0):
        windows = torch.stack(
            [self.noisy[:, :, left : left + 128] for left in (seeds % 300).tolist()]
        )
        noise = torch.randn(windows.shape, generator=torch.Generator().manual_seed(int(seeds[0])))
        problem = md.TVDenoising(windows + more_noise * noise, 0.2, isotropic=True)
        return Draw(problem, problem.start())


def stream(method, moves, more_noise, frames=60):
    """Return the iterations of cold and warm starts to one accuracy, taken in turn, and how many
    times faster.
    """
    spent = torch.zeros(2, 2)
    state = None
    for frame in range(frames):
        problem = Windows().draw(torch.tensor([frame]), more_noise).problem
        rules = {
            "iterations": 2000,
            "check_every": 2,
            "stop": md.gap(1e-3, start_value=problem.value(problem.start())),
        }
        cold = warm = md.solve(problem, method, **rules)
        if state is not None:
            warm = md.solve(problem, method, state=state, **rules)
            spent += torch.tensor([[float(run.steps), run.seconds] for run in (cold, warm)])
        # The window moves on by a pixel, and so may the solution and its dual variable.
        state = map_tensors(lambda tensor: tensor.roll(-1, -1), warm.state) if moves else warm.state
    return *(spent[:, 0] / (frames - 1)).tolist(), float(spent[0, 1] / spent[1, 1])


if __name__ == "__main__":
    print(*((way, stream(md.PDHG(0.5), *how)) for way, how in WAYS.items()), sep="\n")
