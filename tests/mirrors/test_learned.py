"""Learned maps, pairs and conjugates, in every method."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent import AMD, ASMD, MD, SMD, Quadratic, Status, TVDenoising, solve
from mirrordescent.mirrors import (
    Conjugate,
    ConvICNN,
    DenseICNN,
    Euclidean,
    LearnedPair,
    StrongConvexity,
)
from mirrordescent.mirrors.inverse import NotConverged
from mirrordescent.oracles import Exact

METHODS = {
    "MD": MD,
    "SMD": SMD,
    "AMD primal": lambda mirror, t: AMD(mirror, t, storage="primal"),
    "AMD dual": AMD,
    "ASMD": ASMD,
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())


def randomised(potential, seed=0, spread=0.3):
    generator = torch.Generator().manual_seed(seed)
    potential = potential.double()
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.add_(
                spread * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            )
    return potential


def image_potential(seed=0):
    return randomised(ConvICNN(1, filters=4, quadratic=True), seed)


def dense_potential(seed=0):
    return randomised(DenseICNN(3, hidden=3, quadratic=True), seed)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def denoising():
    return TVDenoising(random(2, 1, 6, 7).sigmoid())


@pytest.fixture
def pair():
    return LearnedPair(dense_potential(0), dense_potential(1))


def test_a_pair_is_two_gradients(pair):
    x = random(2, 3)
    assert not pair.exact
    assert torch.equal(pair.to_dual(x), pair.forward_potential.gradient(x))
    assert torch.equal(pair.to_primal(x), pair.backward_potential.gradient(x))
    assert torch.equal(pair.potential(x), pair.forward_potential.value(x))
    assert pair.strong_convexity == StrongConvexity(pair.forward_potential.strong_convexity, 2.0)


@pytest.mark.parametrize(("norm", "p"), [("l1", 1), ("l2", 2)])
def test_inconsistency_in_both_directions(pair, norm, p):
    x = random(4, 3)
    forward = pair.forward_potential.gradient
    backward = pair.backward_potential.gradient
    primal = backward(forward(x)) - x
    dual = forward(backward(x)) - x
    torch.testing.assert_close(pair.inconsistency(x, norm), primal.norm(p, dim=1))
    torch.testing.assert_close(pair.dual_inconsistency(x, norm), dual.norm(p, dim=1))
    assert not torch.allclose(primal, dual)
    torch.testing.assert_close(pair.inconsistency(x, "mean"), primal.abs().mean(1))


def test_inconsistency_of_a_dict_is_that_of_its_concatenation():
    pair = LearnedPair(image_potential(0), image_potential(1))
    first = random(2, 1, 4, 4)
    second = random(2, 1, 3, 5)
    joined = pair.inconsistency({"a": first, "b": second}, "l2")
    torch.testing.assert_close(
        joined.square(), sum(pair.inconsistency(x, "l2").square() for x in (first, second))
    )


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_consistent_pair_has_finite_derivatives(norm):
    pair = LearnedPair(dense_potential(), dense_potential())
    with torch.no_grad():
        for potential in (pair.forward_potential, pair.backward_potential):
            potential.output.fill_(-1e4)  # softplus underflows: ∇M is a multiple of the identity
            potential.mu = 1.0
            potential.scale[...] = -1e4
    inconsistency = pair.inconsistency(random(2, 3), norm)
    assert torch.equal(inconsistency, torch.zeros(2, dtype=torch.float64))
    inconsistency.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in pair.parameters())


def test_conjugate_is_an_exact_map():
    mirror = Conjugate(image_potential())
    x = random(3, 1, 4, 5)
    x0 = random(3, 1, 4, 5, seed=1)
    assert mirror.exact
    assert mirror.strong_convexity is None
    y = mirror.to_dual(x)
    torch.testing.assert_close(mirror.to_primal(y), x, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(mirror.to_dual(mirror.to_primal(x)), x, rtol=1e-8, atol=1e-8)
    inner = (mirror.to_dual(x0) * (x - x0)).flatten(1).sum(1)
    definition = mirror.potential(x) - mirror.potential(x0) - inner
    torch.testing.assert_close(mirror.divergence(x, x0), definition, rtol=1e-8, atol=1e-8)
    assert (mirror.divergence(x, x0) > 0).all()
    assert torch.equal(mirror.dual_start(x), mirror.to_dual(x))


def test_conjugate_potential_is_the_supremum():
    """ψ(x) = sup_y ⟨x, y⟩ − M*(y), attained at y = ∇ψ(x), which is the derivative of ψ."""
    mirror = Conjugate(dense_potential())
    x = random(2, 3).requires_grad_()
    value = mirror.potential(x)
    y = mirror.to_dual(x).detach()
    for seed in range(20):
        other = y + random(2, 3, seed=seed)
        assert ((x * other).sum(1) - mirror.dual_potential.value(other) < value).all()
    (derivative,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(derivative, y, rtol=1e-8, atol=1e-8)


def test_a_learned_start_is_a_multiple_of_x0():
    mirror = Conjugate(dense_potential(), start="scaled")
    x0 = random(2, 3)
    assert torch.equal(mirror.dual_start(x0), x0)
    with torch.no_grad():
        mirror.log_scale.fill_(torch.tensor(2.5).log())
    torch.testing.assert_close(mirror.dual_start(x0), 2.5 * x0, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mirror.dual_start({"w": x0})["w"], 2.5 * x0, rtol=1e-6, atol=1e-6)
    mirror.dual_start(x0).sum().backward()
    assert mirror.log_scale.grad == pytest.approx(2.5 * x0.sum().item(), rel=1e-6)
    assert [
        name for name, _ in Conjugate(dense_potential()).named_parameters() if "log_scale" in name
    ] == []


def test_unknown_choices_are_refused(pair):
    with pytest.raises(ValueError, match="exact, scaled"):
        Conjugate(dense_potential(), start="random")
    with pytest.raises(ValueError, match="l1, l2"):
        pair.inconsistency(random(2, 3), "linf")


@every_method
@pytest.mark.parametrize("kind", ["pair", "conjugate", "scaled"])
def test_every_method_solves_with_learned_maps(make, kind, denoising):
    match kind:
        case "pair":
            # Both near the identity, so that they are nearly inverse without training.
            mirror = LearnedPair(*(ConvICNN(1, quadratic=False).double() for _ in range(2)))
        case "conjugate":
            mirror = Conjugate(image_potential())
        case _:
            mirror = Conjugate(image_potential(), start="scaled")
    x0 = denoising.start() + 1.0
    solution = solve(denoising, make(mirror, 0.1), x0, iterations=60)
    assert solution.statuses == [Status.BUDGET] * 2
    assert (solution.value < 0.2 * denoising.value(x0)).all()
    assert not solution.x.requires_grad


def test_storage_does_not_matter_to_a_conjugate(denoising):
    mirror = Conjugate(image_potential())
    x0 = denoising.start()
    same = {"rtol": 1e-8, "atol": 1e-8}
    for primal, dual in [
        (MD(mirror, 0.1), SMD(mirror, 0.1)),
        (AMD(mirror, 0.1, storage="primal"), AMD(mirror, 0.1)),
    ]:
        stored_primal = solve(denoising, primal, x0, iterations=12)
        stored_dual = solve(denoising, dual, x0, iterations=12)
        torch.testing.assert_close(stored_primal.x, stored_dual.x, **same)
        assert (stored_dual.x - x0).abs().max() > 1e-3
    euclidean = solve(denoising, SMD(Euclidean(), 0.1), x0, iterations=12)
    assert (
        euclidean.x - solve(denoising, SMD(mirror, 0.1), x0, iterations=12).x
    ).abs().max() > 1e-3


def test_storage_matters_to_a_pair(denoising):
    pair = LearnedPair(image_potential(0), image_potential(1))
    x0 = denoising.start()
    primal, dual = (
        solve(denoising, method(pair, 0.05), x0, iterations=5).x for method in (MD, SMD)
    )
    assert (primal - dual).abs().max() > 1e-3


def test_dual_storage_makes_a_pair_the_conjugate_of_its_second_network(denoising):
    """∇M enters dual-stored methods through y⁰ alone."""
    pair = LearnedPair(image_potential(0), image_potential(1))
    conjugate = Conjugate(pair.backward_potential)
    x0 = denoising.start()
    started = conjugate.to_primal(pair.to_dual(x0)).detach()  # where the pair's dual iterate begins
    by_pair = solve(denoising, SMD(pair, 0.05), x0, iterations=12)
    by_conjugate = solve(denoising, SMD(conjugate, 0.05), started, iterations=12)
    torch.testing.assert_close(by_pair.x, by_conjugate.x, rtol=1e-8, atol=1e-8)


@every_method
@pytest.mark.parametrize("kind", ["pair", "conjugate", "scaled"])
def test_unrolled_gradients_agree_with_finite_differences(make, kind):
    if kind == "pair":
        mirror = LearnedPair(dense_potential(0), dense_potential(1))
    else:
        mirror = Conjugate(dense_potential(), start="exact" if kind == "conjugate" else "scaled")
    A = random(3, 3, seed=5)
    unroll = _Unroll(make(mirror, 0.1), Quadratic(A @ A.T, random(3, seed=6)), steps=3)
    x0 = random(1, 3, seed=7)
    names = [name for name, _ in unroll.named_parameters()]
    parameters = [p.detach().clone().requires_grad_() for p in unroll.parameters()]

    def loss(*parameters):
        return torch.func.functional_call(unroll, dict(zip(names, parameters, strict=True)), (x0,))

    assert torch.autograd.gradcheck(loss, parameters, atol=1e-6, rtol=1e-4, fast_mode=True)
    gradients = torch.autograd.grad(loss(*parameters), parameters, allow_unused=True)
    idle = {name for name, g in zip(names, gradients, strict=True) if g is None or not g.any()}
    # Only a primal-stored method, which begins at x0 itself, has no use for a learned start.
    primal_stored = (
        isinstance(unroll.method, MD) or getattr(unroll.method, "storage", "dual") == "primal"
    )
    assert idle == ({"method.mirror.log_scale"} if kind == "scaled" and primal_stored else set())


class _Unroll(nn.Module):
    def __init__(self, method, problem, steps):
        super().__init__()
        self.method = method
        self.problem = problem
        self.steps = steps

    def forward(self, x0):
        state = self.method.init(x0)
        for _ in range(self.steps):
            state = self.method.step(self.problem, state, Exact())
        return self.problem.value(self.method.answer(state)).sum()


def test_a_kink_has_no_inverse_and_says_so():
    """At a jump of ∇M* the target may lie between its two values."""
    potential = DenseICNN(1, hidden=1, layers=1, activation="leaky_relu").double()
    with torch.no_grad():
        potential.skips.fill_(1.0)
        potential.output.fill_(3.0)
    left, right = potential.gradient(torch.tensor([[-1e-9], [1e-9]], dtype=torch.float64)).detach()
    with pytest.warns(NotConverged):
        Conjugate(potential).to_dual((0.5 * (left + right)).reshape(1, 1))
