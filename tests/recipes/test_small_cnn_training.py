"""The gradient of small convolutional networks, against automatic differentiation of the same
network.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent.problems.network_training import NetworkTraining
from mirrordescent.recipes.architectures import small_cnn
from mirrordescent.recipes.small_cnn_training import SmallCNNTraining


def drawn(batch=3, n=7):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, n, 1, 14, 14, generator=generator, dtype=torch.float64)
    images = images * (images > 0.6)  # as drawings are, mostly blank
    labels = torch.randint(10, (batch, n), generator=generator)
    problems = [
        each(small_cnn().double(), images, labels) for each in (SmallCNNTraining, NetworkTraining)
    ]
    return *problems, problems[0].initial(range(batch))


def test_the_value_the_gradient_and_its_derivative():
    """⟨v, ∇f(x)⟩ is differentiated once more, as learning does through unrolled runs."""
    written, automatic, x = drawn()
    v = {
        name: torch.randn(leaf.shape, generator=torch.Generator().manual_seed(1)).double()
        for name, leaf in x.items()
    }
    second = []
    for problem in (written, automatic):
        at = {name: leaf.clone().requires_grad_() for name, leaf in x.items()}
        slope = problem.grad(at)
        along = sum((slope[name] * v[name]).sum() for name in at)
        second.append((slope, torch.autograd.grad(along, list(at.values()))))
    torch.testing.assert_close(written.value(x), automatic.value(x))
    assert torch.equal(written.accuracy(x), automatic.accuracy(x))
    for name in x:
        torch.testing.assert_close(second[0][0][name], second[1][0][name])
    for ours, theirs in zip(second[0][1], second[1][1], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_blank_images_share_their_maxima():
    """All patches of a window are alike: a share of each makes up one."""
    blank = torch.ones(1, 2, 1, 14, 14, dtype=torch.float64)
    labels = torch.tensor([[3, 4]])
    written, automatic = (
        each(small_cnn().double(), blank, labels) for each in (SmallCNNTraining, NetworkTraining)
    )
    x = written.initial([0])
    for name, slope in automatic.grad(x).items():
        torch.testing.assert_close(written.grad(x)[name], slope)


def test_other_networks_are_refused():
    with pytest.raises(TypeError, match="a convolution and a dense layer"):
        SmallCNNTraining(
            nn.Sequential(nn.Flatten(), nn.Linear(196, 10)),
            torch.zeros(1, 2, 1, 14, 14),
            torch.zeros(1, 2).long(),
        )
