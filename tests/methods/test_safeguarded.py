"""Methods with their own oracle, and methods with a net under them."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent import (
    AMD,
    GD,
    MD,
    Averaged,
    Function,
    Quadratic,
    TVDenoising,
    TVInpainting,
    solve,
    zoo,
)
from mirrordescent.domains import Box
from mirrordescent.methods import PDHG, Certified, Equipped, Safeguarded
from mirrordescent.mirrors import Diagonal, Euclidean, Logit, Stencil
from mirrordescent.oracles import Default, Exact, Minibatch, Noisy, Rounded, Smoothed


def noisy_images(batch=2, seed=0):
    return torch.rand(
        batch, 1, 9, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def test_an_equipped_method_asks_its_own_oracle():
    problem = TVDenoising(noisy_images())
    equipped = solve(problem, Equipped(GD(0.1), Smoothed(0.3)), iterations=20)
    assert torch.equal(equipped.x, solve(problem, GD(0.1), iterations=20, oracle=Smoothed(0.3)).x)
    assert not torch.equal(equipped.x, solve(problem, GD(0.1), iterations=20).x)


@pytest.mark.parametrize(
    "oracle", [Smoothed(10.0), Exact(), Minibatch(1)], ids=lambda o: type(o).__name__
)
def test_an_oracle_that_cannot_be_honoured_is_an_error(oracle):
    problem = TVDenoising(noisy_images())
    for method in (Equipped(GD(0.1), Smoothed(0.3)), Certified(Equipped(GD(0.1), Smoothed(0.3)))):
        with pytest.raises(
            TypeError,
            match=f"brings its own oracle, Smoothed, and cannot use {type(oracle).__name__}",
        ):
            solve(problem, method, iterations=1, oracle=oracle)
    with pytest.raises(TypeError, match="PDHG uses no gradients, and cannot use Noisy"):
        solve(problem, PDHG(), iterations=1, oracle=Noisy(0.1, oracle), generator=torch.Generator())


def test_an_oracle_around_another_goes_around_the_method_s_own():
    problem = TVDenoising(noisy_images())

    def draw():
        return torch.Generator().manual_seed(3)

    own = solve(
        problem, Equipped(GD(0.1), Smoothed(0.3)), iterations=9, oracle=Noisy(0.1), generator=draw()
    )
    same = solve(problem, GD(0.1), iterations=9, oracle=Noisy(0.1, Smoothed(0.3)), generator=draw())
    assert torch.equal(own.x, same.x)
    with pytest.raises(ValueError, match="Noisy is random"):
        solve(problem, Equipped(GD(0.1), Smoothed(0.3)), iterations=9, oracle=Noisy(0.1))


def test_wrappers_have_the_map_of_the_method_inside():
    mirror = Euclidean()
    for wrapped in (
        Averaged(MD(mirror, 0.1)),
        Certified(MD(mirror, 0.1)),
        Safeguarded(Averaged(MD(mirror, 0.1))),
    ):
        assert wrapped.mirror is mirror


def test_one_filter_serves_both_steps_of_amd():
    """With R = B_ψ and a linear ∇ψ* the shared path is the algorithm as printed, in both
    storages.
    """
    x0 = noisy_images(seed=1)
    problem = TVDenoising(noisy_images())
    mirror = Stencil(0.6).double().requires_grad_(False)
    primal, dual = (
        AMD(mirror, 0.1, regulariser=mirror, storage=storage) for storage in ("primal", "dual")
    )
    states = [method.init(x0) for method in (primal, dual)]
    for k in range(12):
        x = states[0].x
        x_tilde = mirror.step(states[0].x, Rounded(2.0)(problem, states[0].x, k), 0.1)
        states = [
            m.step(problem, s, Rounded(2.0)) for m, s in zip((primal, dual), states, strict=True)
        ]
        torch.testing.assert_close(states[0].x_tilde, x_tilde)
        torch.testing.assert_close(states[0].x, states[1].x)
        assert not torch.equal(states[0].x, x)


def test_without_trouble_it_changes_nothing():
    problem = TVInpainting(
        noisy_images(), torch.rand(9, 8, generator=torch.Generator().manual_seed(2)) > 0.2
    )
    plain = AMD(Euclidean(), 0.02)
    watched = Safeguarded(AMD(Euclidean(), 0.02), every=5)
    solution, looked_after = (
        solve(problem, m, iterations=25, oracle=Smoothed(0.3)) for m in (plain, watched)
    )
    assert not looked_after.state.own.fallbacks.any()
    assert torch.equal(solution.x, looked_after.x)


def test_samples_fall_back_by_themselves():
    """GD with t = 1 is exact for one, diverges for the other until its steps are short enough."""
    problem = Quadratic(torch.tensor([[[1.0]], [[30.0]]]), centre=torch.tensor([[2.0], [2.0]]))
    solution = solve(
        problem, Safeguarded(GD(1.0), every=1, slack=0.0), torch.zeros(2, 1), iterations=250
    )
    assert solution.state.own.fallbacks.tolist()[0] == 0
    assert solution.state.own.fallbacks.tolist()[1] >= 4  # 2/30 is the longest stable step
    assert solution.ok
    torch.testing.assert_close(solution.x, torch.full((2, 1), 2.0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("every", [1, 7])
def test_never_worse_than_its_start_and_monotone(every):
    problem = TVDenoising(noisy_images(3), weight=20.0)
    wild = Safeguarded(AMD(Euclidean(), 5.0), every=every)
    values = solve(problem, wild, iterations=300, check_every=1, trace=range(301)).trace.values
    assert (values.diff(dim=0) <= 0).all()
    assert (values[-1] < values[0]).all()


def test_what_is_not_a_number_is_left():
    cliff = Function(lambda x: torch.where(x.abs() > 3, torch.nan, x.square()).sum(-1))
    solution = solve(
        cliff, Safeguarded(GD(5.0), every=1), torch.tensor([[1.0]]), iterations=40, check_every=1
    )
    assert solution.ok
    assert float(solution.value) < 0.1
    assert int(solution.state.own.fallbacks) > 0


def test_after_a_fall_back_it_goes_on_where_a_restart_would():
    """The state after a fall-back is that of the method started at the best point, k apart, on
    halved gradients.
    """
    problem = Quadratic(torch.tensor([9.0, 1.0]), centre=torch.zeros(1, 2))
    x0 = torch.ones(1, 2)
    inner = AMD(Diagonal(1.0), 0.5, dual_weight=0.3)
    watched = Safeguarded(inner, every=1)
    state = watched.step(problem, watched.init(x0, problem), Exact())
    assert state.own.fallbacks.item() == 1
    assert state.k == 1
    again = watched.step(problem, state, Exact())
    start = inner.init(x0)._replace(k=1)
    torch.testing.assert_close(again.inner.x, inner.update(start, problem.grad(x0) / 2).x)


def test_steps_are_shortened_with_the_oracle_that_a_method_brings():
    problem = TVDenoising(torch.rand(1, 1, 6, 6))
    x0 = torch.rand(1, 1, 6, 6)
    own = Smoothed(0.2)
    watched = Safeguarded(Equipped(GD(0.1), own))
    state = watched.init(x0, problem)
    state = state._replace(own=state.own._replace(factor=torch.tensor([0.5])))
    after = watched.step(problem, state, Default())
    torch.testing.assert_close(after.x, x0 - 0.05 * own(problem, x0, 1))


@pytest.mark.parametrize("around", [lambda method: method, Certified], ids=["alone", "certified"])
def test_steps_are_shortened_under_a_kernel_too(compiled, around):
    """The numbers are those without a kernel, also while steps are short."""
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(2, 3, 12, 12, generator=generator, dtype=torch.float64)
    mask = torch.rand(12, 12, generator=generator) > 0.3
    problem = TVInpainting(image, mask)
    entry = zoo.load("photo-inpaint-stencil").double()
    entry.method.t.raw += 2.0  # far too long
    with torch.no_grad():
        plain, fused = (
            solve(problem, Safeguarded(around(entry)), iterations=60, check_every=20, fused=fused)
            for fused in (False, True)
        )
    assert (fused.state.own.fallbacks > 0).all()
    assert torch.equal(plain.state.own.fallbacks, fused.state.own.fallbacks)
    assert (plain.lower is None) == (around is not Certified)
    torch.testing.assert_close(plain.trace.values, fused.trace.values)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="every ≥ 1"):
        Safeguarded(GD(0.1), every=0)
    with pytest.raises(TypeError, match="compares values of f"):
        Safeguarded(GD(0.1)).init(torch.zeros(1, 1))
    with pytest.raises(TypeError, match="PDHG uses no gradients"):
        Safeguarded(PDHG())  # whose steps could not be shortened
    assert not hasattr(Safeguarded(GD(0.1)), "update")


@pytest.mark.parametrize("make", [md.AMD, md.SMD, md.ASMD])
def test_a_best_point_that_rounding_put_on_the_boundary_is_gone_on_from(make):
    """The sigmoid is 1 in single precision from about 17 on; there a map has no dual point to begin
    with.
    """
    problem = md.LeastSquares(torch.eye(2), torch.tensor([[1.5, 0.2]]), Box(-1.0, 1.0))
    method = make(Logit(-1.0, 1.0), 0.1)
    best = torch.tensor([[1.0, 0.2]])
    with pytest.raises(md.DomainError):
        method.init(best, problem)
    state = method.resume(best, problem, k=3)
    assert state.k == 3
    assert torch.allclose(method.answer(state), best, atol=1e-3)
    for _ in range(20):
        state = method.step(problem, state, Exact())
    assert bool(problem.value(method.answer(state)) <= problem.value(best) + 1e-3)
