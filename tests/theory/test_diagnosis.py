"""The diagnosis as a whole, its page, and the entry of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mirrordescent import (
    AMD,
    LPD,
    MD,
    SMD,
    Function,
    LeastSquares,
    Quadratic,
    TVDenoising,
    solve,
    zoo,
)
from mirrordescent.data import Features
from mirrordescent.diagnosis.diagnosis_page import markdown, write
from mirrordescent.diagnosis.entries import PROBLEMS, EntrywiseWeighted, diagnose_entry, unlearned
from mirrordescent.domains import Simplex
from mirrordescent.learn.recipe import CONTROL
from mirrordescent.methods import Averaged, Equipped
from mirrordescent.mirrors import (
    Conjugate,
    ConvICNN,
    DenseICNN,
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    LearnedPair,
    Logit,
    NegativeEntropy,
    SimplexEntropy,
    Spectral,
    Stencil,
)
from mirrordescent.mirrors.inverse import invert
from mirrordescent.oracles import Exact, Noisy, Rounded
from mirrordescent.recipes.task_families import TomographyFamily
from mirrordescent.theory import diagnose


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def quadratic():
    return Quadratic(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64), random(2, 3))


def test_a_sound_map_passes_every_test_and_its_page_says_so(quadratic, tmp_path):
    mirror = Diagonal(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    diagnosis = diagnose(mirror, quadratic, random(2, 3, seed=1), iterations=40)
    assert set(diagnosis.runs) == {"MD", "SMD", "AMD", "ASMD"}
    assert set(diagnosis.geometries) == {"primal", "dual"}
    unsound = [v for v in diagnosis.verdicts if v.answer == "does not hold"]
    # All that is against it is what no quadratic on Rⁿ satisfies, and constant steps, which exact
    # gradients allow.
    assert {v.assumption for v in unsound} <= {
        "E‖G‖_*² ≤ σ² on the whole domain",
        "Σ t_k = ∞ and Σ t_k² < ∞",
        "M_ψ = sup B_ψ < ∞ on the whole domain",
    }
    for run in diagnosis.runs.values():
        assert (run.bound_check.measured <= run.bound_check.bound + 1e-12).all()
        assert run.record["gap"][-1].max() < run.record["gap"][0].min()
    page = write(diagnosis, tmp_path / "page")
    text = page.read_text()
    for words in (
        "# Diagonal on Quadratic",
        "## AMD",
        "γ = 2",
        "L_f",
        "| f is convex | holds |",
        "[diagnosis.html](diagnosis.html)",
    ):
        assert words in text
    assert "![bounds](bounds.png)" in markdown(diagnosis, figures=".png")
    curves = (page.parent / "diagnosis.html").read_text()
    for title in ("Bounds: AMD", "Energies: SMD", "a-priori bound", "slack of the inequality"):
        assert title in curves


def test_the_storage_of_a_pair_matters(quadratic):
    mirror = LearnedPair(
        *(DenseICNN(3, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))
    )
    methods = {
        "primal": MD(mirror, 0.1),
        "dual": SMD(mirror, 0.1),
        "Algorithm 1": AMD(mirror, 0.1, storage="primal"),
    }
    diagnosis = diagnose(mirror, quadratic, methods=methods, iterations=20, exact_iterates=True)
    assert diagnosis.runs["primal"].record["error"].min() > 0
    assert "primal_error" in diagnosis.runs["primal"].record
    assert "distance" in diagnosis.runs["Algorithm 1"].record
    assert not diagnosis.runs["dual"].record["error"].any()
    assert diagnosis.runs["dual"].updates is not None
    answers = {storage: g.verdicts[-1].answer for storage, g in diagnosis.geometries.items()}
    assert answers == {"primal": "does not hold", "dual": "holds"}
    assert "keep t constant" in markdown(diagnosis)


@pytest.mark.parametrize("kind", ["hyperbolic", "logit", "orthant", "simplex"])
def test_maps_of_any_domain(kind):
    """Sampled points lie inside the domain of the map, and provide an α if there is no other."""
    u = random(2, 3).softmax(-1)
    A = random(2, 4, 3, seed=1)
    mirror = {
        "hyperbolic": HyperbolicEntropy(),
        "logit": Logit(0.0, 2.0),
        "orthant": NegativeEntropy(),
        "simplex": SimplexEntropy(),
    }[kind]
    domain = Simplex() if kind == "simplex" else None
    problem = LeastSquares(A, torch.einsum("bmn,bn->bm", A, u), domain)
    x0 = random(2, 3, seed=2).softmax(-1)
    diagnosis = diagnose(mirror, problem, x0, minimiser=u, iterations=15)
    for run in diagnosis.runs.values():
        assert run.bound_check.bound.isfinite().all()
        assert (run.bound_check.measured <= run.bound_check.bound + 1e-9).all()
    how = diagnosis.geometries["primal"].alpha.source
    assert how == ("sampled" if kind in ("hyperbolic", "orthant") else "formula")


def test_images_noise_and_kinks():
    problem = TVDenoising(
        torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )
    mirror = LearnedPair(ConvICNN(1, filters=3).double(), ConvICNN(1, filters=3).double())
    diagnosis = diagnose(SMD(mirror, 0.1), problem, iterations=6, oracle=Noisy(0.1))
    assert diagnosis.settings["compared with"] == "a certified minimiser"
    assert set(diagnosis.equivariance.by_name) == {"∇ψ, learned", "∇ψ*, learned"}
    assert diagnosis.problem_verdicts[1].answer == "does not hold"
    text = markdown(diagnosis)
    assert "## Equivariance" in text
    assert "largest ⟨Δ, x − x*⟩" in text


def test_without_a_certificate_a_longer_run_serves(quadratic):
    problem = Function(quadratic.value)
    x0 = random(2, 3, seed=1)
    diagnosis = diagnose(MD(Euclidean(), 0.2), problem, x0, iterations=10)
    assert "not certified" in diagnosis.settings["compared with"]
    with pytest.raises(ValueError, match="give minimiser="):
        diagnose(Euclidean(), problem, x0)
    assert (
        diagnose(Euclidean(), problem, x0, minimiser=quadratic.centre, iterations=5)
        .runs["MD"]
        .record["gap"]
        .min()
        >= 0
    )


def test_a_method_that_asks_for_no_gradients_is_diagnosed_as_far_as_that_goes(quadratic):
    problem = TVDenoising(
        torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )
    diagnosis = diagnose(LPD().double(), problem, iterations=30)
    assert (diagnosis.geometries, diagnosis.inconsistency) == ({}, {})
    assert [v.answer for v in diagnosis.problem_verdicts] == ["holds", "does not hold"]
    run = diagnosis.runs["LPD"]
    assert (run.record["gap"][-1] < run.record["gap"][0]).all()
    assert run.bound_check is None
    with pytest.raises(TypeError, match="LPD needs proximal operators"):
        diagnose(LPD().double(), quadratic)


def few_features(directory):
    """Of the right dimension, without the training of a feature extractor."""
    features = random(40, 50).float()
    labels = random(40, seed=1).sign().float()
    return Features(features, labels, features, labels), "random"


@pytest.mark.parametrize(
    ("name", "problem"), [("ellipse-denoise-pair", "denoise"), ("mnist49-svm-conjugate", "svm")]
)
def test_entries_of_the_zoo(name, problem, tmp_path, monkeypatch):
    monkeypatch.delenv("MIRRORDESCENT_DATA", raising=False)
    monkeypatch.setattr("mirrordescent.diagnosis.entries.load_features", few_features)
    diagnosis = diagnose_entry(name, problem, tmp_path / "no data", count=2, side=16, iterations=10)
    runs = (
        {"LMD", "LSMD", "LAMD", "LASMD", "Algorithm 1"}
        if problem == "denoise"
        else {"LSMD", "LAMD", "LASMD"}
    )
    assert set(diagnosis.runs) == runs
    assert diagnosis.name == name
    assert name in markdown(diagnosis)
    for run in diagnosis.runs.values():
        assert (run.record["gap"] > -1e-6).all()


def test_a_saved_file_is_diagnosed_and_mistakes_are_explained(tmp_path):
    zoo.save(zoo.load("ellipse-denoise-pair"), tmp_path / "mine")
    diagnosis = diagnose_entry(
        tmp_path / "mine.safetensors", "denoise", tmp_path, count=1, side=12, iterations=3
    )
    assert diagnosis.name == "mine"
    assert diagnosis.settings["entry"] == "mine@1"
    assert "mine@1" in markdown(diagnosis)
    with pytest.raises(ValueError, match="one of inpaint, denoise, svm, tomography, network"):
        diagnose_entry("ellipse-denoise-pair", "denoising")
    with pytest.raises(ValueError, match="was not learned to train a network"):
        diagnose_entry("ellipse-denoise-pair", "network")
    with pytest.raises(TypeError, match="nothing to diagnose"):
        diagnose_entry("ellipse-denoise-lpd", "denoise", tmp_path, count=1, side=12)
    assert set(PROBLEMS) == {"inpaint", "denoise", "svm", "tomography", "network"}


def test_a_map_that_is_expensive_to_invert_is_inverted_rarely(monkeypatch):
    """At few points of few problems, and at all minimisers once for all runs."""
    sizes = []

    def counting(potential, y, **options):
        sizes.append(len(y))
        return invert(potential, y, **options)

    monkeypatch.setattr("mirrordescent.mirrors.learned.invert", counting)
    mirror = Conjugate(ConvICNN(1, filters=2).double(), "scaled")
    problem = TVDenoising(
        torch.rand(6, 1, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )
    methods = {"SMD": SMD(mirror, 0.1), "AMD": AMD(mirror, 0.1)}
    diagnose(mirror, problem, methods=methods, iterations=5, minimiser=problem.start())
    assert sizes.count(6) == 1
    assert sum(sizes) <= 40


def test_a_method_that_trains_networks():
    diagnosis = diagnose_entry("moons-diagonal", "network", count=2, iterations=6)
    assert set(diagnosis.runs) == {"LAMD", "LSMD"}
    assert [v.answer for v in diagnosis.problem_verdicts] == ["does not hold", "does not hold"]
    assert "no theorem applies" in diagnosis.problem_verdicts[0].reason
    assert {v.answer for v in diagnosis.geometries["dual"].verdicts} == {"holds"}
    defects = {name.split(",")[0]: found for name, found in diagnosis.equivariance.by_name.items()}
    assert max(defects["as shipped"].values()) < 1e-12
    assert max(defects["tied along orbits"].values()) < 1e-4
    assert defects["untied"]["before learning"] < 1e-4 < defects["untied"]["learned"]
    assert "permutations of hidden units" in markdown(diagnosis)


def test_a_method_with_an_oracle_of_its_own_is_diagnosed_with_it(tmp_path):
    method = Equipped(AMD(Spectral(), 0.05, returns="x_tilde"), Rounded(2.0))
    zoo.save(method, tmp_path / "mine")
    diagnosis = diagnose_entry(
        tmp_path / "mine.safetensors", "denoise", tmp_path, count=1, side=12, iterations=4
    )
    assert set(diagnosis.runs) == {"LAMD"}
    assert "Rounded" in diagnosis.settings["gradients"]
    verdicts = {v.assumption: v for v in diagnosis.runs["LAMD"].verdicts}
    assert verdicts["the gradients are exact"].answer == "does not hold"


def test_relative_gradients_are_true_ones_in_a_weighted_geometry(tmp_path):
    """The run is the same, and nothing of it is an error."""
    name = "ellipse-tomography-exact"
    diagnosis = diagnose_entry(name, "tomography", tmp_path, count=2, side=12, iterations=8)
    run = diagnosis.runs["LAMD"]
    assert diagnosis.settings["gradients"] == "Exact"
    assert not run.record["error"].any()
    drawn = TomographyFamily(12, terms=8).validation(2)
    plain = solve(drawn.problem.double(), zoo.load(name).double(), drawn.x0.double(), iterations=8)
    torch.testing.assert_close(run.solution.x, plain.x)

    s = random(1, 1, 3, 3).abs() + 0.1
    x = random(2, 1, 3, 3, seed=1).abs()
    weighted = EntrywiseWeighted(NegativeEntropy(), s)
    entropy = NegativeEntropy()
    at = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(weighted.potential(at).sum(), at)
    torch.testing.assert_close(weighted.to_dual(x), gradient)
    torch.testing.assert_close(weighted.to_primal(weighted.to_dual(x)), x)
    torch.testing.assert_close(
        EntrywiseWeighted(entropy, torch.ones_like(s)).potential(x), entropy.potential(x)
    )


def test_every_shipped_map_has_a_page():
    pages = Path(__file__).parents[2] / "docs" / "results" / "diagnosis"
    shipped = [
        name for name in zoo.list() if not name.endswith(CONTROL)
    ]  # whose map is the identity
    with_maps = [name for name in shipped if getattr(zoo.load(name), "mirror", None) is not None]
    assert sorted(page.parent.name for page in pages.glob("*/diagnosis.md")) == with_maps
    for name in with_maps:
        assert (pages / name / "diagnosis.md").read_text().startswith(f"# {name} on ")


def test_before_learning_a_map_has_the_same_structure_and_nothing_learned():
    pair = zoo.load("ellipse-denoise-pair").mirror
    stencil = zoo.load("ellipse-denoise-stencil").method.mirror
    tied = zoo.load("moons-diagonal").mirror
    for learned in (pair, stencil, tied):
        before = unlearned(learned)
        assert before.state_dict().keys() == learned.state_dict().keys()
        assert any(
            not torch.equal(p, q)
            for p, q in zip(before.parameters(), learned.parameters(), strict=True)
        )
        again = unlearned(before)
        assert type(again) is type(learned)
    assert unlearned(stencil).damping.item() == pytest.approx(Stencil().damping.item())
    assert all((part.multipliers == 1).all() for part in unlearned(tied).maps)
    learnable = Diagonal(torch.nn.Parameter(torch.tensor([3.0])))
    fixed = Diagonal(torch.tensor([3.0]))
    assert (unlearned(learnable).d.item(), unlearned(fixed).d.item()) == (1.0, 3.0)


def test_methods_in_wrappers(quadratic, tmp_path):
    """A wrapper with an oracle uses it; a wrapper that changes the run has no theorem."""
    x0 = random(2, 3, seed=1)
    method = SMD(Diagonal(torch.ones(3, dtype=torch.float64)), 0.2)
    noisy = diagnose(Equipped(method, Noisy(0.1)), quadratic, x0, iterations=20)
    plain = diagnose(method, quadratic, x0, iterations=20, oracle=Noisy(0.1))
    assert (noisy.settings["gradients"], noisy.name) == ("Noisy", "Equipped")
    assert torch.equal(noisy.runs["Equipped"].record["gap"], plain.runs["SMD"].record["gap"])
    assert noisy.runs["Equipped"].verdicts == plain.runs["SMD"].verdicts
    assert noisy.runs["Equipped"].advice == plain.runs["SMD"].advice
    assert "\nSMD, dual-stored" in markdown(noisy)
    with pytest.raises(TypeError, match="brings its own oracle"):
        diagnose(Equipped(method, Noisy(0.1)), quadratic, x0, iterations=20, oracle=Exact())

    averaged = diagnose(Averaged(method), quadratic, x0, iterations=20)
    (verdict,) = averaged.runs["Averaged"].verdicts
    assert "about the SMD inside" in verdict.reason
    assert set(averaged.geometries) == {"dual"}
    assert averaged.runs["Averaged"].bound_check is None
    assert "there is no bound" in write(averaged, tmp_path).read_text()
