"""Families of networks, and learning layer-wise maps on them."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent.learn import Checkpointed, Descent, Full, Objective, Settings, Validation, learn
from mirrordescent.learn.families import draw_seeds
from mirrordescent.learn.network_families import NetworkFamily, moons_family
from mirrordescent.learn.unrolling import unroll
from mirrordescent.methods import AMD, GD, SMD, Adam
from mirrordescent.mirrors import layerwise
from mirrordescent.oracles import Minibatch
from mirrordescent.problems.network_training import NetworkTraining
from mirrordescent.recipes.architectures import dense, moons_network, small_cnn
from mirrordescent.recipes.task_families import FewShotFamily
from mirrordescent.schedules import Interpolated
from mirrordescent.trees import batch_size


def characters(count, seed):
    return torch.rand(count, 8, 14, 14, generator=torch.Generator().manual_seed(seed))


def families():
    start = {name: leaf[0] for name, leaf in few_shot().draw(torch.tensor([5])).x0.items()}
    return {
        "moons": moons_family(40),
        "few-shot": few_shot(),
        "few-shot, one start": few_shot(initial=start),
    }


def few_shot(**options):
    return FewShotFamily(small_cnn(), characters(12, 0), characters(6, 1), way=3, shot=2, **options)


@pytest.mark.parametrize("name", ["moons", "few-shot", "few-shot, one start"])
def test_a_problem_is_a_function_of_its_seed(name):
    family = families()[name]
    seeds = draw_seeds(3, torch.Generator().manual_seed(3))
    together = family.draw(seeds)
    apart = [family.draw(seed.unsqueeze(0)) for seed in seeds]
    for key, leaf in together.x0.items():
        assert torch.equal(leaf, torch.cat([draw.x0[key] for draw in apart]))
    values = torch.cat([draw.problem.value(draw.x0) for draw in apart])
    torch.testing.assert_close(together.problem.value(together.x0), values)
    assert len(values.unique()) == 3


def test_validation_is_fixed_and_not_drawn():
    family = moons_family(40)
    first = family.validation(2).x0
    longer = family.validation(4).x0
    drawn = family.draw(torch.arange(50)).x0
    for name, leaf in first.items():
        assert torch.equal(leaf, longer[name][:2])
        assert torch.cdist(leaf.flatten(1), drawn[name].flatten(1)).min() > 1e-5


def test_few_shot_tasks_are_made_of_the_right_characters():
    family = few_shot()
    seeds = torch.tensor([1, 2])
    for held_out, pool in ((False, family.characters), (True, family.held_out)):
        tasks = family.tasks(seeds, held_out)
        assert tasks.train_images.shape == (2, 6, 14, 14)
        assert tasks.test_images.shape == (2, 18, 14, 14)
        known = pool.flatten(0, 1).flatten(1)
        for images in (tasks.train_images, tasks.test_images):
            assert torch.cdist(images.flatten(0, 1).flatten(1), known).min(1).values.max() < 0.1
    validation = family.validation(2).problem
    assert torch.cdist(validation.inputs.flatten(0, 2).flatten(1), known).min(1).values.max() < 0.1


def test_few_shot_networks_learn_their_own_tasks():
    draw = few_shot().draw(torch.tensor([1, 2]))
    solution = md.solve(draw.problem, Adam(0.01), draw.x0, iterations=100)
    assert (draw.problem.accuracy(solution.x) == 1).all()
    swapped = {name: leaf.flip(0) for name, leaf in solution.x.items()}
    assert (draw.problem.accuracy(swapped) < 1).all()


@pytest.mark.parametrize(
    "differentiation", [Full(), Checkpointed()], ids=lambda d: type(d).__name__
)
@pytest.mark.parametrize("accelerated", [False, True])
def test_meta_gradients_through_minibatches(differentiation, accelerated):
    """Compare the derivative of the final loss by a log-multiplier with a difference quotient."""
    model = dense((2, 4, 3)).double()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(9, 2, generator=generator).double()
    targets = torch.randint(3, (9,), generator=generator)
    problem = NetworkTraining(model, inputs, targets)
    x0 = problem.initial([0, 1])
    mirror = layerwise(model, "diagonal")
    method = AMD(mirror, 0.1, cap=3, regulariser=mirror) if accelerated else SMD(mirror, 0.3)

    def loss():
        values = unroll(
            method,
            problem,
            x0,
            9,
            Minibatch(4),
            torch.Generator().manual_seed(1),
            differentiation=differentiation,
            every=4,
            measure=lambda k, x: problem.value(x),
        )
        assert len(values) == 3  # after 4, 8 and 9 steps
        return values[-1].sum()

    parameter = mirror["0.weight"].log_multiplier
    (slopes,) = torch.autograd.grad(loss(), parameter)
    h = 1e-6
    for i, slope in enumerate(slopes):
        with torch.no_grad():
            parameter[i] += h
            above = loss()
            parameter[i] -= 2 * h
            below = loss()
            parameter[i] += h
        torch.testing.assert_close(slope, (above - below) / (2 * h), rtol=1e-4, atol=1e-8)


def test_checkpointed_meta_gradients_are_those_of_the_whole_graph():
    family = few_shot()
    oracle = Minibatch(4)
    mirror = layerwise(small_cnn(), "spline", "tensor")
    method = SMD(mirror, 0.1)
    found = {}
    draw = family.draw(torch.tensor([1, 2]))
    for differentiation in (Full(), Checkpointed()):
        mirror.zero_grad()
        objective = Objective("log_value", every=3, differentiation=differentiation)
        losses, values = objective.losses(
            method, draw, 12, 0, oracle, torch.Generator().manual_seed(0)
        )
        assert values.shape == (4, 2)
        losses.mean().backward()
        found[type(differentiation)] = torch.cat([p.grad.flatten() for p in mirror.parameters()])
    assert found[Full].norm() > 0
    torch.testing.assert_close(found[Full], found[Checkpointed])


def test_learning_multipliers_speeds_up_fresh_networks(tmp_path):
    family = moons_family(60)
    mirror = layerwise(moons_network(), "diagonal")
    method = SMD(mirror, Interpolated([1], [0.05]))
    draw = family.validation(4)
    before = md.solve(draw.problem, method, draw.x0, iterations=10).value.mean()
    settings = Settings(
        meta_steps=15,
        batch=4,
        horizon=10,
        optimiser=Descent(learning_rate=0.2),
        objective=Objective("log_value", every=5),
        validation=Validation(every=5, batch=4, horizons=(1.0,)),
        save_every=5,
    )
    learn(family, method, settings, oracle=Minibatch(30), folder=tmp_path, progress=False)
    after = md.solve(draw.problem, method, draw.x0, iterations=10).value.mean()
    assert after < 0.8 * before


def test_a_family_of_any_data():
    images, labels = md.data.digits("test")
    family = NetworkFamily(dense((64, 10)), images.flatten(1), labels, evaluation=100)
    draw = family.draw(torch.arange(5))
    assert batch_size(draw.x0) == 5
    assert draw.problem.terms == len(labels)
    solution = md.solve(
        draw.problem,
        GD(0.5),
        draw.x0,
        iterations=100,
        oracle=Minibatch(50),
        generator=torch.Generator().manual_seed(0),
    )
    assert (draw.problem.accuracy(solution.x) > 0.8).all()
