"""A map, a method and a problem, each in one class of one file, with no other line of the library
knowing them.

Each then solves, learns, is saved and loaded, is diagnosed, and (map, method) trains a network.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import nn

import mirrordescent as md
from mirrordescent.learn import Descent, Draw, ProblemFamily, Settings, learn
from mirrordescent.methods import GradientMethod
from mirrordescent.mirrors import Euclidean, MirrorMap
from mirrordescent.parts import PartMissing
from mirrordescent.problems import Problem
from mirrordescent.schedules import as_schedule
from mirrordescent.theory import diagnose
from mirrordescent.trees import Tree, descend, sum_per_sample, tree_map


class LogCosh(MirrorMap):
    """ψ(x) = Σ a·x²/2 + log cosh x:  ∇ψ(x) = a·x + tanh x, inverted by Newton's method; log a is
    learned.
    """

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self.log_a = nn.Parameter(torch.tensor(a).log())

    @property
    def a(self):
        return self.log_a.exp()

    def _potential(self, x):
        return sum_per_sample(self.a * x.square() / 2 + torch.cosh(x).log())

    def _to_dual(self, x):
        return self.a * x + x.tanh()

    def _to_primal(self, y):
        x = y / (1 + self.a)
        for _ in range(30):
            x = x - (self.a * x + x.tanh() - y) / (self.a + 1 - x.tanh().square())
        return x


class HeavyBallState(NamedTuple):
    k: int
    x: Tree
    velocity: Tree


class HeavyBall(GradientMethod[HeavyBallState]):
    """v⁺ = βv − t_k ∇ψ*(g),  x⁺ = x + v⁺, with a learned β."""

    def __init__(self, mirror, t, beta=0.5):
        super().__init__(mirror)
        self.t = as_schedule(t, "t")
        self.raw_beta = nn.Parameter(torch.tensor(beta).logit())

    @property
    def beta(self):
        return self.raw_beta.sigmoid()

    def init(self, x0, problem=None):
        return HeavyBallState(0, x0, tree_map(torch.zeros_like, x0))

    def update(self, state, grad):
        t = self.t(state.k + 1)
        direction = self.mirror.to_primal(grad)
        velocity = tree_map(lambda v, d: descend(self.beta * v, d, t), state.velocity, direction)
        return HeavyBallState(state.k + 1, tree_map(torch.add, state.x, velocity), velocity)


class Valley(Problem):
    """f(x) = Σ log cosh(c·(x − b)): convex, with minimum 0 at b."""

    convex = True

    def __init__(self, b, c):
        super().__init__(len(b), tuple(b.shape[1:]))
        self.register_buffer("b", b)
        self.register_buffer("c", c)

    def value(self, x):
        return torch.cosh(self.c * (x - self.b)).log().sum(-1)

    def grad(self, x):
        return self.c * (self.c * (x - self.b)).tanh()

    def smoothness(self):
        return float(self.c.square().max())

    def minimiser(self, tolerance):
        return self.b, self.b.new_zeros(len(self.b))


class Valleys(ProblemFamily):
    def draw(self, seeds):
        b = torch.stack(
            [
                torch.randn(3, generator=torch.Generator().manual_seed(seed))
                for seed in seeds.tolist()
            ]
        )
        problem = Valley(b, torch.tensor([1.0, 0.5, 2.0]))
        return Draw(problem, problem.start(), torch.zeros(len(b)))

    def validation(self, count):
        return self.draw(torch.arange(10**6, 10**6 + count))


METHODS = {
    "own map": lambda: md.SMD(LogCosh(2.0), torch.nn.Parameter(torch.tensor(0.1))),
    "own method": lambda: HeavyBall(Euclidean(), 0.05),
    "both": lambda: HeavyBall(LogCosh(), 0.05),
}


@pytest.fixture
def problem():
    return Valleys().validation(4).problem


@pytest.mark.parametrize("name", METHODS)
def test_it_solves(name, problem):
    solution = md.solve(problem, METHODS[name](), iterations=2000, stop=md.gradient_norm(1e-4))
    assert solution.statuses == [md.Status.CONVERGED] * 4
    torch.testing.assert_close(solution.x, problem.b, atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", METHODS)
def test_it_learns_and_comes_back_from_a_file(name, problem, tmp_path, fresh_python):
    method = METHODS[name]()
    before = md.solve(problem, method, iterations=10).value.mean()
    learn(
        Valleys(), method, Settings(meta_steps=60, horizon=10, optimiser=Descent(learning_rate=0.1))
    )
    learned = md.solve(problem, method, iterations=10)
    assert learned.value.mean() < 0.8 * before
    path = md.zoo.save(method, tmp_path / "mine")
    assert md.zoo.card(path).kind == "method"
    assert md.zoo.card(path).requires == [__name__]
    again = md.zoo.load(path)
    assert type(again) is type(method)
    assert torch.equal(md.solve(problem, again, iterations=10).x, learned.x)
    with pytest.raises(
        PartMissing, match=rf"of the module {__name__}, which has not been imported"
    ):
        raise_in_another_process(path, fresh_python)


def raise_in_another_process(path, fresh_python):
    """Load an entry where its classes are not defined."""
    code = (
        "from mirrordescent import zoo\n"
        f"try:\n    zoo.load({str(path)!r})\n"
        "except LookupError as e:\n    print(e)"
    )
    done = fresh_python(code)
    assert done.returncode == 0, done.stderr
    raise PartMissing(done.stdout)


@pytest.mark.parametrize("name", METHODS)
def test_it_is_diagnosed(name, problem):
    method = METHODS[name]().requires_grad_(False)
    found = diagnose(method, problem, iterations=20)
    answers = {verdict.assumption: verdict.answer for verdict in found.verdicts}
    assert answers["f is convex"] == "not known", "stated by a class outside the library"
    assert answers["∇ψ* is the inverse of ∇ψ"] == "holds"


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_a_network(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    inputs = torch.randn(64, 4)
    targets = (inputs[:, :1] - inputs[:, 1:2]).tanh()
    own = METHODS[name]()
    mirror = own.mirror.requires_grad_(False)
    if isinstance(own, HeavyBall):
        optimiser = md.optim.MirrorOptimizer(
            model.parameters(), lr=0.3, mirror=mirror, method=HeavyBall
        )
    else:
        optimiser = md.optim.SMD(model.parameters(), lr=1.0, mirror=mirror)

    def loss():
        return (model(inputs) - targets).square().mean()

    first = float(loss().detach())
    for _ in range(300):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
    assert float(loss().detach()) < 0.5 * first


def test_a_problem_is_certified_and_stored(problem, tmp_path):
    reference = md.certify(problem)
    torch.testing.assert_close(reference.x, problem.b.double())
    again = md.zoo.load(md.zoo.save(problem, tmp_path / "valley"))
    assert md.zoo.card(tmp_path / "valley.safetensors").kind == "problem"
    x = torch.ones(4, 3)
    assert torch.equal(again.value(x), problem.value(x))


def test_a_subclass_that_changes_a_formula_does_not_inherit_its_fast_forms():
    class Cubed(md.mirrors.Diagonal):
        def _to_dual(self, x):
            return x + x**3

    x = nn.Parameter(torch.ones(2))
    optimiser = md.optim.MD([x], lr=0.1, mirror=Cubed(1.0))
    x.sum().backward()
    optimiser.step()
    torch.testing.assert_close(x.detach(), torch.full((2,), 1.9))  # in place it would be 1 − 0.1
