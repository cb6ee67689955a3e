"""Over-relaxation of primal-dual methods: its formula, its conditions, and feasible answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mirrordescent as md
from mirrordescent.methods import PDHG, CondatVu, ScheduledPrimalDual
from mirrordescent.methods.primal_dual import least_slack
from mirrordescent.mirrors import Stencil
from mirrordescent.oracles import Default
from mirrordescent.schedules import Polynomial, PowerLaws


def images(batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(batch, 1, 7, 6, generator=generator, dtype=torch.float64)


def denoising(**options: object) -> md.TVDenoising:
    return md.TVDenoising(images(), 0.3, **options)


def inpainting(**options: object) -> md.TVInpainting:
    mask = torch.rand(7, 6, generator=torch.Generator().manual_seed(1)) > 0.3
    return md.TVInpainting(images(), mask, 0.2, **options)


def after(problem, method, steps):
    state = method.init(problem.start(), problem)
    for _ in range(steps):
        state = method.step(problem, state, Default())
    return state


def matrix_of_differences(height: int, width: int) -> np.ndarray:
    """The matrix of all vertical, then all horizontal differences of an image in row order."""
    number = np.arange(height * width).reshape(height, width)
    pairs = [*zip(number[:-1].ravel(), number[1:].ravel(), strict=True)]
    pairs += zip(number[:, :-1].ravel(), number[:, 1:].ravel(), strict=True)
    matrix = np.zeros((len(pairs), height * width))
    for row, (start, end) in enumerate(pairs):
        matrix[row, start] = -1
        matrix[row, end] = 1
    return matrix


def flat(state) -> tuple[np.ndarray, np.ndarray]:
    """The answer and the dual point of the first sample as vectors."""
    u = [state.u[name][0].numpy().ravel() for name in ("vertical", "horizontal")]
    return state.x[0].numpy().ravel(), np.concatenate(u)


def rho_of(k: int) -> float:
    return 1.2 + 0.6 / k


@pytest.mark.parametrize("explicit", [False, True])
def test_a_relaxed_step_is_that_of_the_formula_in_numpy(explicit):
    """F(x) = ½‖x − y‖² on the range of y, G* the indicator of |u| ≤ ½λ, matrices written out."""
    problem = denoising()
    D = matrix_of_differences(7, 6)
    y = problem.y[0].numpy().ravel()
    ratio = 0.4
    norm = np.sqrt(8)
    sigma = 1 / (ratio * norm)
    tau = 1 / (1.0 + sigma * 8) if explicit else ratio / norm  # ρ₁ = 1.8: c = L = 1
    z = y.copy()
    w = np.zeros(len(D))
    for k in range(1, 9):
        if explicit:
            x = z - tau * (z - y + D.T @ w)
        else:
            x = np.clip((z - tau * D.T @ w + tau * y) / (1 + tau), y.min(), y.max())
        u = np.clip(w + sigma * D @ (2 * x - z), -0.15, 0.15)
        z = z + rho_of(k) * (x - z)
        w = w + rho_of(k) * (u - w)
    kind = CondatVu if explicit else PDHG
    state = after(problem, kind(ratio, relaxation=rho_of), 8)
    for found, expected in zip(flat(state), (x, u), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-13)
    np.testing.assert_allclose(state.relaxed.x[0].numpy().ravel(), z, atol=1e-13)
    assert np.abs(w).max() > 0.15, "the relaxed dual variable is not feasible"


@pytest.mark.parametrize("implicit", [False, True])
def test_the_scheduled_method_with_a_constant_relaxation_is_a_relaxed_classical_one(implicit):
    problem = inpainting()
    classical = (PDHG if implicit else CondatVu)(0.6, relaxation=1.7)
    scheduled = ScheduledPrimalDual(0.6, implicit=implicit, relaxation=1.7)
    ours, theirs = (after(problem, method, 9) for method in (scheduled, classical))
    torch.testing.assert_close(ours.x, theirs.x)
    torch.testing.assert_close(ours.u, theirs.u)
    torch.testing.assert_close(ours.relaxed.u, theirs.relaxed.u)


def test_every_number_of_a_relaxed_scheduled_method_follows_its_schedule():
    """Against the formulas, written out."""
    problem = inpainting()
    ratio, stretch, ahead, momentum, rho = (
        PowerLaws([1, 8], values)
        for values in ([0.5, 2.0], [0.8, 1.2], [0.5, 1.2], [0.3, 0.6], [1.9, 1.2])
    )
    method = ScheduledPrimalDual(ratio, stretch, ahead, momentum, relaxation=rho)
    method = method.double().requires_grad_(False)
    z = old = problem.start()
    w = {name: torch.zeros_like(block) for name, block in problem.K(z).items()}
    for k in range(1, 8):
        sigma = 1 / (ratio(k) * problem.K_norm)
        c = min(1.0, 0.5 / (2 - rho(k)))
        tau = stretch(k) / (c + sigma * problem.K_norm**2)
        x = z + momentum(k) * (z - old) - tau * (problem.grad_F(z) + problem.K_adjoint(w))
        image = problem.K(x + ahead(k) * (x - z))
        u = problem.prox_G_conjugate({name: w[name] + sigma * image[name] for name in w}, sigma)
        old = z
        z = z + rho(k) * (x - z)
        w = {name: w[name] + rho(k) * (u[name] - w[name]) for name in w}
    state = after(problem, method, 7)
    torch.testing.assert_close(state.x, x)
    torch.testing.assert_close(state.relaxed.x, z)


RELAXED = {
    "PDHG": lambda rho: PDHG(0.4, rho),
    "Condat–Vũ": lambda rho: CondatVu(0.4, relaxation=rho),
    "Condat–Vũ with a stencil": lambda rho: CondatVu(0.3, Stencil(0.6).double(), rho),
    "scheduled": lambda rho: ScheduledPrimalDual(0.4, relaxation=rho),
}


@pytest.mark.parametrize("rho", [0.5, 1.5, 1.9])
@pytest.mark.parametrize("make", [denoising, inpainting])
@pytest.mark.parametrize("name", RELAXED)
def test_relaxed_iterates_converge_to_a_saddle_point(name, make, rho, compiled):
    """−Kᵀu = ∇F(x) in the box and u ∈ ∂G(Kx), which the prox of both says in one line each."""
    problem = make()
    method = RELAXED[name](rho).requires_grad_(False)
    state = md.solve(problem, method, iterations=9000, fused=True, progress=False).state
    x = state.x
    u = state.u
    with torch.no_grad():
        same_x = problem.prox_F(x - problem.K_adjoint(u), 1.0)
        same_u = problem.prox_G_conjugate({k: u[k] + d for k, d in problem.K(x).items()}, 1.0)
    torch.testing.assert_close(same_x, x, atol=1e-7, rtol=0)
    torch.testing.assert_close(same_u, u, atol=1e-7, rtol=0)


def test_a_fit_that_is_not_quadratic_gets_shorter_steps_and_converges():
    """The steps leave 1/τ − σ‖K‖² = L/(2(2 − ρ)): the least that the theorem permits."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(1, 20, 4, generator=generator, dtype=torch.float64)
    labels = torch.rand(1, 20, generator=generator).round().double() * 2 - 1
    problem = md.Composite(md.LogisticRegression(points, labels), [md.L1(0.02)])
    assert not problem.F_quadratic
    for rho in (1.0, 1.5, 1.9):
        method = CondatVu(1.0, relaxation=rho)
        saddle = method.saddle(problem)
        tau, sigma = method.step_sizes(saddle)
        slack = 1 / tau - sigma * saddle.K_norm**2
        assert slack == pytest.approx(saddle.F_smoothness / (2 * (2 - rho)))
        assert method.largest_relaxation(saddle) == pytest.approx(rho)
    x = md.solve(problem, CondatVu(1.0, relaxation=1.9), iterations=9000, progress=False).x
    moved = x - problem.smooth.grad(x)  # x = prox of the ℓ₁ norm there, if x is a minimiser
    torch.testing.assert_close(torch.nn.functional.softshrink(moved, 0.02), x, rtol=0, atol=1e-9)
    assert bool((x != 0).any())


def test_the_slack_of_the_step_sizes():
    assert least_slack(4.0, 0.5, quadratic=False) == 2.0
    assert least_slack(4.0, 1.0, quadratic=True) == 2.0
    assert least_slack(4.0, 1.5, quadratic=False) == 4.0
    assert least_slack(4.0, 1.9, quadratic=True) == 4.0
    rho = torch.tensor([0.5, 1.0, 1.75])
    torch.testing.assert_close(least_slack(4.0, rho, False), torch.tensor([2.0, 2.0, 8.0]))
    torch.testing.assert_close(least_slack(4.0, rho, True), torch.tensor([2.0, 2.0, 4.0]))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", RELAXED)
def test_answers_are_feasible_and_bounds_are_valid_at_every_step(name, fused, compiled):
    """Relaxed iterates leave the box and the dual ball; answers and dual points do not."""
    problem = inpainting(isotropic=True)
    reference = md.certify(problem, 1e-9)
    left = []

    def look(snapshot: md.solving.Snapshot) -> None:
        u = snapshot.state.u
        feasible = problem.prox_G_conjugate(u, 0.0)
        torch.testing.assert_close(feasible, u, rtol=1e-12, atol=1e-14)
        relaxed = problem.prox_G_conjugate(snapshot.state.relaxed.u, 0.0)
        left.append(not torch.equal(relaxed["vertical"], snapshot.state.relaxed.u["vertical"]))
        if name == "PDHG" and snapshot.k > 0:
            assert bool((snapshot.x >= problem.low).all() and (snapshot.x <= problem.high).all())
        assert snapshot.lower is not None
        assert bool((snapshot.lower <= reference.value + 1e-12).all())

    method = RELAXED[name](1.9).requires_grad_(False)
    found = md.solve(
        problem,
        method,
        iterations=2000,
        stop=md.gap(1e-7),
        check_every=1,
        callbacks=[look],
        fused=fused,
        progress=False,
    )
    assert any(left)
    assert found.statuses == [md.Status.CONVERGED] * 2


def test_answers_satisfy_a_constraint_that_relaxed_iterates_violate():
    y = images() - 0.5
    problem = md.Composite(md.SquaredError(y), [md.TV(0.1), md.NonNegative()])
    for method in (PDHG(0.5, 1.9), CondatVu(0.5, relaxation=1.9)):
        state = after(problem, method, 3)
        assert bool((state.relaxed.x < 0).any())
        assert bool((method.answer(state) >= 0).all())
        found = md.solve(problem, method, iterations=2000, stop=md.gap(1e-6), progress=False)
        assert found.statuses == [md.Status.CONVERGED] * 2


@pytest.mark.parametrize("kind", [PDHG, CondatVu])
def test_relaxation_saves_steps(kind, compiled):
    """To a proof, with the best of some ratios for each."""
    y = md.data.noisy_phantoms(2, 64, seed=3)[1]
    problem = md.TVDenoising(y, 0.15).double()

    def steps(ratio: float, rho: float) -> float:
        method = kind(ratio, relaxation=rho)
        options = {"stop": md.gap(1e-4), "check_every": 5, "fused": True, "progress": False}
        found = md.solve(problem, method, iterations=2000, **options)
        assert found.statuses == [md.Status.CONVERGED] * 2
        return float(found.steps.double().mean())

    plain, relaxed = (min(steps(ratio, rho) for ratio in (0.1, 0.2, 0.4)) for rho in (1.0, 1.8))
    assert relaxed < 0.75 * plain


def test_each_sample_may_have_a_relaxation_of_its_own():
    problem = denoising()
    rho = torch.tensor([1.8, 1.2], dtype=torch.float64)

    def each(k: int) -> torch.Tensor:
        return rho

    together = after(problem, CondatVu(0.5, relaxation=each), 6)
    for sample, number in enumerate(rho.tolist()):
        alone = md.TVDenoising(problem.y[sample : sample + 1], 0.3)
        state = after(alone, CondatVu(0.5, relaxation=number), 6)
        torch.testing.assert_close(together.x[sample : sample + 1], state.x)
        torch.testing.assert_close(together.relaxed.x[sample : sample + 1], state.relaxed.x)


@pytest.mark.parametrize("kind", [PDHG, CondatVu, ScheduledPrimalDual])
def test_the_relaxation_is_learned(kind):
    """The derivative of f after five steps is that of finite differences."""
    problem = denoising()
    laws = PowerLaws([1], [1.6], bound=2.0).double()

    def loss() -> torch.Tensor:
        return problem.value(after(problem, kind(0.5, relaxation=laws), 5).x).sum()

    with torch.enable_grad():
        (slope,) = torch.autograd.grad(loss(), [laws.raw])
    with torch.no_grad():
        values = []
        for change in (1e-6, -2e-6):
            laws.raw += change
            values.append(float(loss()))
    assert float(slope) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5)
    assert float(slope) != 0


@pytest.mark.parametrize("kind", [PDHG, CondatVu, ScheduledPrimalDual])
@pytest.mark.parametrize("rho", [0.0, 2.0, -1.0, float("nan")])
def test_a_relaxation_outside_the_interval_is_refused(kind, rho):
    with pytest.raises(ValueError, match=r"relaxation must be a number in \(0, 2\)"):
        kind(1.0, relaxation=rho)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [PDHG, CondatVu, ScheduledPrimalDual])
def test_a_schedule_that_leaves_the_interval_is_refused_at_its_step(kind, fused, compiled):
    method = kind(1.0, relaxation=lambda k: 1.8 if k < 4 else 2.0)
    assert md.solve(denoising(), method, iterations=3, fused=fused, progress=False).ok
    with pytest.raises(ValueError, match=r"needs a relaxation in \(0, 2\).* to 2\. "):
        md.solve(denoising(), method, iterations=4, fused=fused, progress=False)


@pytest.mark.parametrize("fused", [False, True])
def test_a_relaxation_that_grows_beyond_its_steps_is_refused(fused, compiled):
    """c = L/(2(2 − 1.2)) permits 1.2, and not 1.6."""
    method = CondatVu(1.0, relaxation=lambda k: 1.2 if k < 3 else 1.6)
    with pytest.raises(ValueError, match=r"at most 1\.2, which the first value"):
        md.solve(denoising(), method, iterations=9, fused=fused, progress=False)
    falling = CondatVu(1.0, relaxation=Polynomial(1.6, 0.1))
    assert md.solve(denoising(), falling, iterations=9, fused=fused, progress=False).ok


def test_without_relaxation_states_and_numbers_are_those_before():
    problem = inpainting()
    for plain, same in (
        (PDHG(0.4), PDHG(0.4, 1.0)),
        (CondatVu(0.4), CondatVu(0.4, None, 1.0)),
    ):
        one, other = (after(problem, method, 5) for method in (plain, same))
        assert one.relaxed is None
        assert torch.equal(one.x, other.x)
        assert not plain.relaxes


def test_a_relaxed_method_is_stored_with_its_relaxation(tmp_path):
    for method in (
        CondatVu(0.3, Stencil(0.6), relaxation=PowerLaws([1, 9], [1.8, 1.2], bound=2.0)),
        ScheduledPrimalDual(0.5, relaxation=1.7),
        PDHG(0.5, 1.6),
    ):
        method.requires_grad_(False)
        md.zoo.save(method, tmp_path / "relaxed.safetensors")
        loaded = md.zoo.load(tmp_path / "relaxed.safetensors")
        problem = denoising()
        ours, theirs = (
            after(problem, each.double(), 4) for each in (method, loaded.requires_grad_(False))
        )
        assert torch.equal(ours.x, theirs.x)
        assert ours.relaxed is not None


def test_a_relaxed_run_starts_warm():
    problem = inpainting()
    method = PDHG(0.4, 1.8)
    found = md.solve(problem, method, iterations=400, progress=False)
    warm = md.solve(problem, method, state=found.state, iterations=3, progress=False)
    cold = md.solve(problem, method, found.x, iterations=3, progress=False)
    assert bool((warm.value < cold.value).all())
