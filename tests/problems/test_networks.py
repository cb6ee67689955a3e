"""Batches of networks, against single networks in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent.methods import SMD, Adam
from mirrordescent.mirrors import Diagonal
from mirrordescent.oracles import Minibatch
from mirrordescent.problems import network_training
from mirrordescent.problems.network_training import NetworkTraining, default_networks, repeat
from mirrordescent.recipes.architectures import mlp, moons_network, small_cnn

SEEDS = [3, 1, 4]


class Gated(nn.Module):
    """A custom architecture that is not a sequence of layers."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(5, 4)
        self.right = nn.Linear(5, 4)

    def forward(self, x):
        return self.left(x) * self.right(x).sigmoid()


def classification(model, shape, classes=4, n=7, own=None, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    lead = (n,) if own is None else (own, n)
    inputs = torch.rand(*lead, *shape, generator=generator, dtype=dtype)
    targets = torch.randint(classes, lead, generator=generator)
    if classes == 2:
        targets = targets.to(dtype)
    return NetworkTraining(model.to(dtype), inputs, targets)


PROBLEMS = {
    "moons": lambda: classification(moons_network(), (2,), 2),
    "mlp": lambda: classification(mlp(), (28, 28), 10),
    "cnn": lambda: classification(small_cnn(), (1, 14, 14), 10),
    "gated": lambda: classification(Gated(), (5,)),
    "cnn, own data": lambda: classification(small_cnn(), (1, 14, 14), 10, own=3),
    "moons, own data": lambda: classification(moons_network(), (2,), 2, own=3),
}


def apply_per_sample(problem, networks, index, subset=slice(None)):
    """Return the loss, gradient and accuracy of one network in plain PyTorch."""
    model = problem.model
    model.load_state_dict({name: leaf[index] for name, leaf in networks.items()})
    own = problem.batch is not None
    inputs, targets = (t[index] if own else t for t in (problem.inputs, problem.targets))
    inputs = inputs[subset]
    targets = targets[subset]
    model.requires_grad_(True).zero_grad()
    outputs = model(inputs)
    if targets.is_floating_point():
        loss = F.binary_cross_entropy_with_logits(outputs[:, 0], targets)
        right = (outputs[:, 0].sigmoid() > 0.5) == targets.bool()
    else:
        loss = F.cross_entropy(outputs, targets)
        right = outputs.argmax(1) == targets
    loss.backward()
    return (
        loss.detach(),
        {name: p.grad.clone() for name, p in model.named_parameters()},
        right.double().mean(),
    )


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_batch_is_its_networks_one_by_one(name):
    problem = PROBLEMS[name]()
    networks = problem.initial(SEEDS)
    subset = torch.tensor([4, 0, 2])
    values = problem.value(networks)
    grads = problem.grad(networks)
    accuracies = problem.accuracy(networks)
    partial = problem.grad_of_terms(networks, subset)
    for i in range(len(SEEDS)):
        value, grad, accuracy = apply_per_sample(problem, networks, i)
        torch.testing.assert_close(values[i], value)
        assert float(accuracies[i]) == pytest.approx(float(accuracy))
        for key in networks:
            torch.testing.assert_close(grads[key][i], grad[key])
        for key, leaf in apply_per_sample(problem, networks, i, subset)[1].items():
            torch.testing.assert_close(partial[key][i], leaf)


def test_the_architectures_have_the_paper_s_sizes():
    counts = [
        sum(p.numel() for p in model.parameters())
        for model in (moons_network(), mlp(), small_cnn())
    ]
    assert counts == [201, 43350, 2970]
    x = torch.rand(2, 1, 14, 14)
    convolution, *_, last = model = small_cnn()
    as_printed = last(F.max_pool2d(convolution(x).relu(), 2).flatten(1))
    assert torch.equal(model(x), as_printed)  # the ReLU commutes with the pooling


def test_the_initialisation_is_pytorch_s():
    networks = default_networks(small_cnn(), range(300))
    torch.manual_seed(0)
    reference = [dict(small_cnn().named_parameters()) for _ in range(300)]
    for name, leaf in networks.items():
        theirs = torch.stack([network[name].detach() for network in reference])
        bound = {"0": 9, "4": 288}[name[0]] ** -0.5
        assert leaf.abs().max() <= bound
        assert theirs.abs().max() <= bound
        assert float(leaf.std()) == pytest.approx(float(theirs.std()), rel=0.03)
        assert float(leaf.std()) == pytest.approx(bound / 3**0.5, rel=0.03)
    alone = default_networks(small_cnn(), torch.tensor([17]))
    assert all(torch.equal(leaf[0], networks[name][17]) for name, leaf in alone.items())


def test_values_are_means_over_all_chunks_or_the_part_for_evaluation():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2345, 2, generator=generator, dtype=torch.float64)
    targets = (inputs[:, 0] > 0).double()
    model = moons_network().double()
    whole = NetworkTraining(model, inputs, targets)
    part = NetworkTraining(model, inputs, targets, evaluation=1500)
    networks = whole.initial(SEEDS)
    torch.testing.assert_close(whole.value(networks)[0], apply_per_sample(whole, networks, 0)[0])
    torch.testing.assert_close(
        part.value(networks)[0], apply_per_sample(whole, networks, 0, slice(1500))[0]
    )
    grads = whole.grad(networks), part.grad(networks)
    assert all(torch.equal(grads[0][name], grads[1][name]) for name in networks)


@pytest.mark.parametrize("name", ["moons", "cnn", "cnn, own data"])
def test_gradients_can_be_differentiated(name):
    """Compare d/dt f(x − t∇f(x)) with a difference quotient: it needs the Hessian."""
    problem = PROBLEMS[name]()
    networks = problem.initial(SEEDS)

    def after(t):
        w = {key: leaf.requires_grad_(t.requires_grad) for key, leaf in networks.items()}
        first = {
            key: leaf - t * g
            for (key, leaf), g in zip(w.items(), problem.grad(w).values(), strict=True)
        }
        return problem.value(
            {
                k: leaf - t * g
                for (k, leaf), g in zip(first.items(), problem.grad(first).values(), strict=True)
            }
        )

    t = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(after(t).sum(), t)
    with torch.no_grad():
        h = 1e-6
        quotient = (after(t.detach() + h) - after(t.detach() - h)).sum() / (2 * h)
    torch.testing.assert_close(slope, quotient, rtol=1e-5, atol=1e-8)


def test_training_is_that_of_torch_optim():
    """Adam on minibatches, the same ones: the batch of networks ends where each would alone."""
    problem = PROBLEMS["mlp"]()
    networks = problem.initial(SEEDS)
    solution = md.solve(
        problem,
        Adam(0.01),
        networks,
        iterations=5,
        oracle=Minibatch(3),
        generator=torch.Generator().manual_seed(5),
    )
    model = problem.model.requires_grad_(True)
    model.load_state_dict({name: leaf[1] for name, leaf in networks.items()})
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(5)
    for _ in range(5):
        subset = torch.randperm(problem.terms, generator=generator)[:3]
        optimiser.zero_grad()
        F.cross_entropy(model(problem.inputs[subset]), problem.targets[subset]).backward()
        optimiser.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(solution.x[name][1], parameter.detach(), rtol=1e-5, atol=1e-7)


def test_it_lives_where_it_is_put(device):
    problem = PROBLEMS["cnn, own data"]().float().to(device)
    networks = problem.initial(SEEDS)
    solution = md.solve(problem, SMD(Diagonal(0.5).to(device), 0.01), networks, iterations=3)
    assert solution.value.device.type == device.type
    assert solution.value.dtype == torch.float32
    assert (solution.value < problem.value(networks)).all()


def test_a_start_may_be_shared():
    problem = PROBLEMS["gated"]()
    one = {name: leaf[0] for name, leaf in problem.initial([0]).items()}
    values = problem.value(repeat(one, 3))
    assert values.shape == (3,)
    assert torch.equal(values, values[:1].expand(3))


def test_another_loss():
    inputs = torch.tensor([[1.0], [2.0]])
    targets = torch.tensor([3.0, 5.0])
    problem = NetworkTraining(
        nn.Linear(1, 1), inputs, targets, loss=lambda out, b: (out[:, 0] - b).square()
    )
    networks = {"weight": torch.ones(1, 1, 1), "bias": torch.zeros(1, 1)}
    assert problem.value(networks).tolist() == [(4 + 9) / 2]
    assert problem.grad(networks)["bias"].tolist() == [[-(2 + 3)]]


def test_mistakes_are_named():
    inputs = torch.rand(4, 2)
    targets = torch.tensor([0.0, 1, 0, 1])
    problem = NetworkTraining(moons_network(), inputs, targets)
    good = problem.initial([0, 1])
    with pytest.raises(TypeError, match="must be a dict with the parameters"):
        problem.check({"weight": torch.ones(1, 2)})
    with pytest.raises(ValueError, match="must have shape"):
        problem.check({**good, "2.bias": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match="there are data for 3"):
        PROBLEMS["moons, own data"]().check({name: leaf.double() for name, leaf in good.items()})
    with pytest.raises(ValueError, match="inputs must start with the shape of targets"):
        NetworkTraining(moons_network(), inputs, targets[:3])
    with pytest.raises(
        ValueError, match="evaluation must be between 1 and the number of data points, 4"
    ):
        NetworkTraining(moons_network(), inputs, targets, evaluation=5)
    with pytest.raises(TypeError, match="no default initialisation is known for"):
        default_networks(nn.Sequential(nn.LayerNorm(3)), [0])


@pytest.mark.parametrize("own", [None, 3])
def test_networks_with_convolutions_one_by_one_are_as_together(own, monkeypatch):
    problem = classification(small_cnn(), (1, 14, 14), 10, own=own)
    x = problem.initial(SEEDS)
    together = problem.value(x), problem.grad(x), problem.accuracy(x)
    asked = []
    monkeypatch.setattr(network_training, "SEQUENTIAL_FROM", 1)
    monkeypatch.setattr(
        NetworkTraining,
        "_sequential_outputs",
        lambda *given, own=NetworkTraining._sequential_outputs: asked.append(1) or own(*given),
    )
    assert torch.allclose(problem.value(x), together[0], rtol=1e-12)
    assert all(
        torch.allclose(g, together[1][name], atol=1e-12) for name, g in problem.grad(x).items()
    )
    assert torch.equal(problem.accuracy(x), together[2])
    assert asked
