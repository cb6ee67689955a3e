"""A frozen task with noisy gradients: policy gradients with bandit feedback."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from mirrordescent.recipes.general_tasks import Training
from mirrordescent_experiments.frozen.images import images


def bandit(seed: int, directory: Path | None) -> Training:
    """A policy that names digits and learns only whether the name was right (REINFORCE).

    The gradient is that of −(reward − baseline)·log π(action). The baseline is the mean reward of
    the minibatch. The policy is judged by its expected share of wrong answers on held-out digits.
    """
    inputs, labels, held_out, held_out_labels = images("mnist", directory, halved=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model.add_module("head", nn.Linear(64, 10))
    generator = torch.Generator().manual_seed(seed)

    def loss(k: int) -> Tensor:
        chosen = torch.randint(len(labels), (64,), generator=generator)
        logs = model(inputs[chosen]).log_softmax(-1)
        actions = torch.multinomial(logs.detach().exp(), 1, generator=generator)
        rewards = (actions[:, 0] == labels[chosen]).float()
        return -((rewards - rewards.mean()) * logs.gather(1, actions)[:, 0]).mean()

    def validate() -> Tensor:
        with torch.no_grad():
            right = model(held_out).softmax(-1).gather(1, held_out_labels[:, None])
            return 1 - right.mean()

    return Training(model, loss, validate)
