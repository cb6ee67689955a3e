"""The right-hand sides of the theorems as sums in plain Python, with distinct numbers."""

from __future__ import annotations

import pytest
import torch

from mirrordescent.theory import Record, bounds

K = 5
BATCH = 2
ALPHA = 0.7
R = 3.5
MU = 0.3
L = 1.7
T = 0.6


def drawn(seed, *shape):
    return 0.1 + torch.rand(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


STEPS = drawn(0, K).sort(descending=True).values
AT_STATES = {
    name: drawn(seed, K + 1, BATCH) for seed, name in enumerate(("gap", "divergence", "energy"), 1)
}
AT_STEPS = {
    name: drawn(seed, K, BATCH) - 0.5
    for seed, name in enumerate(("displacement", "error", "noise_pairing", "error_pairing"), 4)
}
RECORD = Record(STEPS, AT_STATES, AT_STEPS)
B, MOMENT, C, ERROR, VARIANCE, GRADIENT = (drawn(10 + i, BATCH) for i in range(6))

t = STEPS.tolist()
gap, divergence, energy = (AT_STATES[name].tolist() for name in ("gap", "divergence", "energy"))
displacement, error, noise_pairing, error_pairing = (
    series.tolist() for series in AT_STEPS.values()
)


def area(k):
    return k * (k + 1) / 2 if k else 0.5


def table(entry, rows=K):
    """The numbers of ``entry(row, sample)``."""
    return torch.tensor(
        [[entry(s, b) for b in range(BATCH)] for s in range(rows)], dtype=torch.float64
    )


def moved(s, b):
    """Σ_{i ≤ s} tᵢ²‖·‖²/2α."""
    return sum(t[i] ** 2 * displacement[i][b] for i in range(s + 1)) / (2 * ALPHA)


def met(s, b):
    """Σ_{i ≤ s} tᵢ⟨Δᵢ + Uᵢ, xᵢ − u⟩."""
    return sum(t[i] * (noise_pairing[i][b] + error_pairing[i][b]) for i in range(s + 1))


def test_mirror_descent():
    expected = table(lambda s, b: (float(B[b]) + moved(s, b)) / sum(t[: s + 1]))
    torch.testing.assert_close(bounds.md_bound(B, STEPS, AT_STEPS["displacement"], ALPHA), expected)


@pytest.mark.parametrize("case", ["no errors", "case 1", "case 2"])
def test_theorem_2(case):
    further = {"no errors": (0.0, 0.0), "case 1": C.tolist(), "case 2": (C / (2 * MU)).tolist()}[
        case
    ]

    def entry(s, b):
        squares = float(MOMENT[b]) * sum(each**2 for each in t[: s + 1]) / (2 * ALPHA)
        return (float(B[b]) + squares) / sum(t[: s + 1]) + further[b]

    if case == "case 2":
        found = bounds.smd_bound_strongly_convex(B, STEPS, MOMENT, ALPHA, C, MU)
    else:
        found = bounds.smd_bound(B, STEPS, MOMENT, ALPHA, *([C] if case == "case 1" else []))
    torch.testing.assert_close(found, table(entry))


def test_the_pathwise_inequality():
    def mean(s, b):
        return sum(t[i] * gap[i][b] for i in range(s + 1)) / sum(t[: s + 1])

    def realised(s, b):
        return (divergence[0][b] + moved(s, b) - met(s, b)) / sum(t[: s + 1])

    def slack(s, b):
        right = divergence[0][b] - divergence[s + 1][b] + moved(s, b) - met(s, b)
        return right - sum(t[i] * gap[i][b] for i in range(s + 1))

    torch.testing.assert_close(bounds.weighted_mean_gap(RECORD), table(mean))
    torch.testing.assert_close(bounds.smd_realised_bound(RECORD, ALPHA), table(realised))
    torch.testing.assert_close(bounds.smd_slack(RECORD, ALPHA), table(slack))


def test_lemma_1():
    def entry(k, b):
        before = t[k - 1] if k else 0.0
        allowed = (2 * k + 1 - R * k) * t[k] / R * gap[k + 1][b] - k**2 * (before - t[k]) / R * gap[
            k
        ][b]
        return allowed + R * error[k][b] - (energy[k + 1][b] - energy[k][b])

    torch.testing.assert_close(bounds.amd_slack(RECORD, R), table(entry))


def test_proposition_1():
    expected = R * B + T / R * MOMENT + R * C
    torch.testing.assert_close(bounds.amd_first_energy(B, MOMENT, T, R, C), expected)
    torch.testing.assert_close(bounds.amd_first_energy(B, MOMENT, T, R), R * B + T / R * MOMENT)
    assert bounds.amd_first_energy(2.0, 3.0, 0.5, 4.0, 0.25) == 8 + 0.375 + 1
    for number in range(3):  # one tensor among numbers is enough to make a tensor of its precision
        numbers = [torch.tensor([0.3]) if i == number else 0.1 for i in range(3)]
        found = bounds.amd_first_energy(*numbers[:2], T, R, numbers[2])
        assert found.dtype is torch.float32
        assert found.item() == pytest.approx(
            sum(w * float(n) for w, n in zip((R, T / R, R), numbers, strict=True))
        )


def test_theorem_1():
    def entry(k, b, largest=0.0):
        return R / ((k + 1) ** 2 * t[k]) * (float(B[b]) + k * R * largest)

    torch.testing.assert_close(bounds.amd_bound(B, STEPS, R), table(entry))
    torch.testing.assert_close(
        bounds.amd_bound(B, STEPS, R, 0.4), table(lambda k, b: entry(k, b, 0.4))
    )


@pytest.mark.parametrize("full", [True, False], ids=["noise and errors", "defaults"])
def test_theorem_3_as_printed(full):
    options = (
        {"variance": VARIANCE, "squared_gradient": GRADIENT, "error": ERROR, "t": T} if full else {}
    )

    def entry(row, b):
        k = row + 1
        M = float(MOMENT[b])
        sigma, slope, K_, step = (
            (float(VARIANCE[b]), float(GRADIENT[b]), float(ERROR[b]), T) if full else (0, 0, 0, 1)
        )
        moment = (8 * L**2 * M + 2 * ALPHA * sigma + 4 * ALPHA * slope) / ALPHA**2
        return K_ + float(B[b]) / area(k) + (k + 1) ** 1.5 / area(k) * (M / step + step * moment)

    torch.testing.assert_close(bounds.asmd_bound(K, B, MOMENT, ALPHA, L, **options), table(entry))


def test_theorem_3_has_the_precision_of_the_tensors_it_is_given():
    numbers = (2.0, 0.5, 0.25)
    plain = bounds.asmd_bound(3, *numbers[:2], ALPHA, L, error=numbers[2])
    assert (plain.dtype, tuple(plain.shape)) == (torch.get_default_dtype(), (3, 1))
    for number in range(3):
        first, largest, error = (
            torch.tensor([n], dtype=torch.float64) if i == number else n
            for i, n in enumerate(numbers)
        )
        found = bounds.asmd_bound(3, first, largest, ALPHA, L, error=error)
        assert found.dtype is torch.float64
        torch.testing.assert_close(found.float(), plain)


@pytest.mark.parametrize("worst", [0.0, 0.3])
def test_theorem_3_by_second_moments(worst):
    def entry(row, b):
        k = row + 1
        following = t[min(k, K - 1)]  # t_k; of the step after the last one nothing is known
        sizes = (
            t[j] * (area(j + 1) - area(j)) ** 2 / (j + 1) ** 1.5 * displacement[j][b]
            for j in range(k)
        )
        total = (
            float(B[b]) + (k + 1) ** 1.5 / following * float(MOMENT[b]) + sum(sizes) / (2 * ALPHA)
        )
        return worst + total / area(k)

    found = bounds.asmd_bound_by_moments(
        B, STEPS, MOMENT, AT_STEPS["displacement"], ALPHA, *([worst] if worst else [])
    )
    torch.testing.assert_close(found, table(entry))
