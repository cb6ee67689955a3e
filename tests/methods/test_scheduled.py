"""A primal-dual method with schedules: what it is without them, with a map, with momentum, and on
constraints.
"""

import pytest
import torch

import mirrordescent as md
from mirrordescent.methods import PDHG, CondatVu, Method, ScheduledPrimalDual
from mirrordescent.mirrors import NegativeEntropy, Stencil
from mirrordescent.oracles import Default
from mirrordescent.schedules import PowerLaws


def pictures(*terms: object) -> md.Composite:
    seen = torch.rand(2, 1, 9, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return md.Composite(md.SquaredError(seen, curvature=1.5), [md.TV(0.2, isotropic=True), *terms])


def after(problem: md.Composite, method: Method, steps: int = 7):
    state = method.init(problem.start(), problem)
    for _ in range(steps):
        state = method.step(problem, state, Default())
    return state


def blurred(*terms: object) -> md.Composite:
    """The same behind an operator: its data have no prox, and are dualised for PDHG."""
    blur = md.problems.Blur(md.problems.gaussian_kernel(0.7, radius=2)).double()
    return md.Composite(md.SquaredError(pictures().smooth.y, blur), [md.TV(0.2), *terms])


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("terms", [(), (md.NonNegative(),)])
@pytest.mark.parametrize("make", [pictures, blurred])
def test_without_schedules_it_is_a_method_of_the_textbooks(make, terms, implicit):
    """That of Condat and Vũ with the gradient of F, that of Chambolle and Pock with its prox."""
    problem = make(*terms)
    classical = PDHG(0.6) if implicit else CondatVu(0.6)
    ours, theirs = (
        after(problem, method)
        for method in (ScheduledPrimalDual(0.6, implicit=implicit), classical)
    )
    torch.testing.assert_close(ours.x, theirs.x)
    torch.testing.assert_close(ours.u, theirs.u)
    assert ours.k == 7


def test_with_a_map_it_takes_mirror_steps():
    """Those of Condat and Vũ's method are longer by what the stencil makes of the norms."""
    problem = pictures()
    stencil = Stencil(0.6).double().requires_grad_(False)
    mirrored = CondatVu(0.6, stencil)
    stretch = mirrored.step_sizes(problem)[0] / CondatVu(0.6).step_sizes(problem)[0]
    ours = after(problem, ScheduledPrimalDual(0.6, float(stretch), mirror=stencil))
    torch.testing.assert_close(ours.x, after(problem, mirrored).x)


@pytest.mark.parametrize(
    "kind", [CondatVu, lambda ratio, mirror: ScheduledPrimalDual(ratio, mirror=mirror)]
)
def test_a_map_does_not_project(kind):
    """Steps of a map that are clipped end elsewhere than at the minimum, without a word."""
    with pytest.raises(
        TypeError,
        match=r"with a map cannot handle the constraint .* of Composite",
    ):
        md.solve(
            pictures(md.NonNegative()),
            kind(1.0, Stencil(0.3)).double(),
            iterations=3,
            progress=False,
        )


def test_every_number_changes_from_step_to_step():
    """Against the formulas, written out."""
    problem = pictures()
    ratio, stretch, ahead, momentum = (
        PowerLaws([1, 8], v) for v in ([0.5, 2.0], [0.8, 1.6], [0.5, 1.2], [0.3, 0.6])
    )
    method = ScheduledPrimalDual(ratio, stretch, ahead, momentum).double().requires_grad_(False)
    x = old = problem.start()
    u = {name: torch.zeros_like(block) for name, block in problem.K(x).items()}
    for k in range(1, 8):
        sigma = 1 / (ratio(k) * problem.K_norm)
        tau = stretch(k) / (problem.F_smoothness / 2 + sigma * problem.K_norm**2)
        new = x + momentum(k) * (x - old) - tau * (problem.grad_F(x) + problem.K_adjoint(u))
        image = problem.K(new + ahead(k) * (new - x))
        u = problem.prox_G_conjugate({name: u[name] + sigma * image[name] for name in u}, sigma)
        old = x
        x = new
    torch.testing.assert_close(after(problem, method).x, x)


def test_it_proves_bounds_and_starts_warm():
    problem = pictures()
    method = ScheduledPrimalDual(0.6)
    found = md.solve(
        problem, method, iterations=2000, stop=md.gap(1e-6), check_every=20, progress=False
    )
    assert found.ok
    warm = md.solve(problem, method, state=found.state, iterations=3, progress=False)
    cold = md.solve(problem, method, found.x, iterations=3, progress=False)
    assert bool((warm.value < cold.value).all()), "the dual variable is worth something too"
    assert method.dual_step(problem) == pytest.approx(1 / (0.6 * problem.K_norm))


def test_numbers_of_implicit_steps_are_learned_too():
    problem = pictures(md.NonNegative())
    with torch.enable_grad():
        laws = (PowerLaws([1, 4], [v, v]) for v in (0.6, 1.0, 1.0, 0.1))
        method = ScheduledPrimalDual(*laws, implicit=True).double()
        problem.value(after(problem, method).x).sum().backward()
    assert all(p.grad is not None and bool((p.grad != 0).all()) for p in method.parameters())


def test_its_numbers_are_learned_and_a_map_that_is_not_linear_is_refused():
    problem = pictures()
    with torch.enable_grad():
        method = ScheduledPrimalDual(
            *(PowerLaws([1, 4], [v, v]) for v in (0.6, 1.0, 1.0, 0.1)), mirror=Stencil(0.3)
        ).double()
        problem.value(after(problem, method).x).sum().backward()
    assert all(p.grad is not None and bool((p.grad != 0).all()) for p in method.parameters())
    with pytest.raises(TypeError, match="linear map, got NegativeEntropy"):
        ScheduledPrimalDual(mirror=NegativeEntropy())
    with pytest.raises(TypeError, match="implicit=True needs mirror=None"):
        ScheduledPrimalDual(mirror=Stencil(0.3), implicit=True)
    with pytest.raises(ValueError, match="ratio must be one positive"):
        ScheduledPrimalDual(-1.0)
    with pytest.raises(TypeError, match="needs the problem from the start"):
        ScheduledPrimalDual().init(problem.start())
