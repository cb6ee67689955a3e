"""Wrappers inside wrappers: bounds stay bounds, overridden steps are taken, samples keep to
themselves.
"""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent.methods import Equipped, Safeguarded
from mirrordescent.mirrors import Euclidean
from mirrordescent.oracles import Noisy, Scaled
from mirrordescent.parts import describe
from mirrordescent.schedules import Schedule


@pytest.fixture
def problem():
    return md.TVDenoising(
        torch.rand(2, 1, 12, 13, generator=torch.Generator().manual_seed(0)).double()
    )


def test_shortened_steps_prove_nothing_false(problem):
    """Scaled gradients are those of another function, and must not enter the means."""
    reference = md.certify(problem, 1e-8, cache=False)
    wild = Safeguarded(md.Certified(md.AMD(Euclidean(), 5.0)))
    solution = md.solve(problem, wild, iterations=400, check_every=5)
    assert (solution.state.own.fallbacks > 0).all()
    assert (solution.lower <= reference.value + 1e-9).all()
    scaled = md.solve(
        problem,
        md.Certified(md.GD(0.1)),
        iterations=20,
        oracle=Scaled(torch.full((2,), 0.3).double()),
    )
    assert scaled.lower is None


def test_a_kernel_does_not_replace_steps_that_a_subclass_changed(compiled, problem):
    entry = md.zoo.load("ellipse-denoise-stencil").double()
    taken = []

    class Counted(Safeguarded):
        def step(self, *arguments):
            taken.append(1)
            return super().step(*arguments)

    class Still(md.AMD):
        def gradient(self, *arguments):
            return 0 * super().gradient(*arguments)

    md.solve(problem, Counted(entry), iterations=10)
    assert len(taken) == 10
    inner = entry.method
    still = Equipped(
        Still(inner.mirror, inner.t, regulariser=inner.mirror, storage="primal"), entry.oracle
    )
    assert torch.equal(md.solve(problem, still, iterations=10).x, problem.start())
    with pytest.raises(ValueError, match="has no kernel"):
        md.solve(problem, still, iterations=10, fused=True)


def test_a_method_with_a_step_of_its_own_is_not_certified_by_another():
    class Clipped(md.GD):
        def step(self, *arguments):
            state = super().step(*arguments)
            return state._replace(x=state.x.clamp(0.4, 0.6))

    for method in (Clipped(0.1), Equipped(Clipped(0.1), Noisy(0.1))):
        with pytest.raises(TypeError, match="does not override step"):
            md.Certified(method)


def test_a_random_method_is_handed_over_with_kernels_too(compiled, problem):
    method = md.Switch(Equipped(md.GD(0.1), Noisy(0.01)), 5)
    draws = [torch.Generator().manual_seed(0) for _ in range(2)]
    one, two = (
        md.solve(problem, method, iterations=20, generator=draw, fused=fused)
        for draw, fused in zip(draws, (None, False), strict=True)
    )
    torch.testing.assert_close(one.x, two.x)


def test_the_fall_back_of_one_sample_is_no_matter_to_its_neighbours():
    steep = torch.tensor([[1.0, 2.0], [1.0, 30.0]])
    bowls = md.Function(lambda x: (steep[: len(x)] * (x - 1) ** 2).sum(-1) / 2)
    method = Safeguarded(md.Averaged(md.GD(0.1)), every=5)
    both, alone = (
        md.solve(bowls, method, torch.zeros(n, 2), iterations=40, check_every=40) for n in (2, 1)
    )
    assert both.state.own.fallbacks.tolist()[0] == 0 < both.state.own.fallbacks.tolist()[1]
    torch.testing.assert_close(both.x[:1], alone.x)


def test_arguments_that_cannot_be_written_down_are_named():
    class Several(Schedule):
        def __init__(self, *values):
            super().__init__()
            self.values = values

        def forward(self, k):
            return self.values[-1]

    class Typed(Schedule):
        def __init__(self, type):
            super().__init__()
            self.type = type

    for schedule, name in ((Several(0.1, 0.2), r"\*values"), (Typed(0.1), "type")):
        with pytest.raises(TypeError, match=f"cannot be stored: its constructor takes '{name}'"):
            describe(md.GD(schedule))


def test_a_dot_in_the_name_of_an_entry_is_kept(tmp_path):
    first, second = (md.zoo.save(md.GD(t), tmp_path / f"run-{t}") for t in (0.1, 0.2))
    assert (first.name, second.name) == ("run-0.1.safetensors", "run-0.2.safetensors")
    assert md.zoo.load(first).t(1) == 0.1
