"""The diagnosis as a whole, its page, and the entry of the command line."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import AMD, LPD, MD, SMD, Function, LeastSquares, Quadratic, TVDenoising, zoo
from mirrordescent.data import Features
from mirrordescent.domains import Simplex
from mirrordescent.experiments.diagnose import PROBLEMS, diagnose_entry
from mirrordescent.mirrors import (
    ConvICNN,
    DenseICNN,
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    LearnedPair,
    Logit,
    NegativeEntropy,
    SimplexEntropy,
)
from mirrordescent.oracles import Noisy
from mirrordescent.theory import diagnose
from mirrordescent.theory.page import markdown


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
    # All that is against it is what no quadratic on Rⁿ satisfies, and constant steps, which exact gradients allow.
    assert {v.assumption for v in unsound} <= {
        "E‖G‖_*² ≤ σ² on the whole domain",
        "Σ t_k = ∞ and Σ t_k² < ∞",
        "M_ψ = sup B_ψ < ∞ on the whole domain",
    }
    for run in diagnosis.runs.values():
        assert (run.bounded.measured <= run.bounded.bound + 1e-12).all()
        assert run.record["gap"][-1].max() < run.record["gap"][0].min()
    page = diagnosis.write(tmp_path / "page")
    text = page.read_text()
    for words in (
        "# Diagonal on Quadratic",
        "## AMD",
        "γ = 2",
        "L_f",
        "| f is convex | holds |",
        "![bounds](bounds.png)",
    ):
        assert words in text
    for name in ("bounds", "energies", "errors"):
        assert (page.parent / f"{name}.png").stat().st_size > 5000


def test_a_pair_is_told_apart_by_storage(quadratic):
    mirror = LearnedPair(*(DenseICNN(3, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1)))
    methods = {"primal": MD(mirror, 0.1), "dual": SMD(mirror, 0.1), "Algorithm 1": AMD(mirror, 0.1, storage="primal")}
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
    """Points to sample at lie inside the domain of the map, and bounds are computed with an α of theirs if need be."""
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
        assert run.bounded.bound.isfinite().all()
        assert (run.bounded.measured <= run.bounded.bound + 1e-9).all()
    how = diagnosis.geometries["primal"].alpha.how
    assert how == ("sampled" if kind in ("hyperbolic", "orthant") else "formula")


def test_images_noise_and_kinks():
    problem = TVDenoising(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    mirror = LearnedPair(ConvICNN(1, filters=3).double(), ConvICNN(1, filters=3).double())
    diagnosis = diagnose(SMD(mirror, 0.1), problem, iterations=6, oracle=Noisy(0.1))
    assert diagnosis.settings["compared with"] == "a certified minimiser"
    assert set(diagnosis.equivariance) == {"∇ψ", "∇ψ*"}
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
        diagnose(Euclidean(), problem, x0, minimiser=quadratic.centre, iterations=5).runs["MD"].record["gap"].min() >= 0
    )


def test_what_is_no_mirror_method_is_refused(quadratic):
    with pytest.raises(TypeError, match="LPD is none of them"):
        diagnose(LPD(), quadratic)


def few_features(scale, directory):
    """Of the right dimension, without the training of a feature extractor."""
    features, labels = random(40, 50).float(), random(40, seed=1).sign().float()
    return Features(features, labels, features, labels), "random"


@pytest.mark.parametrize(("name", "problem"), [("ellipse-denoise", "denoise"), ("mnist49-svm-conjugate", "svm")])
def test_entries_of_the_zoo(name, problem, tmp_path, monkeypatch):
    monkeypatch.delenv("MIRRORDESCENT_DATA", raising=False)
    monkeypatch.setattr("mirrordescent.experiments.diagnose.load_features", few_features)
    diagnosis = diagnose_entry(name, problem, tmp_path / "no data", count=2, side=16, iterations=10)
    runs = {"LMD", "LSMD", "LAMD", "LASMD", "Algorithm 1"} if problem == "denoise" else {"LSMD", "LAMD", "LASMD"}
    assert set(diagnosis.runs) == runs
    assert diagnosis.name == name
    assert name in markdown(diagnosis)
    for run in diagnosis.runs.values():
        assert (run.record["gap"] > -1e-6).all()


def test_a_saved_file_is_diagnosed_and_mistakes_are_explained(tmp_path):
    zoo.save(zoo.load("ellipse-denoise"), tmp_path / "mine", {"kind": "method"})
    diagnosis = diagnose_entry(tmp_path / "mine.safetensors", "denoise", tmp_path, count=1, side=12, iterations=3)
    assert diagnosis.name == "mine"
    with pytest.raises(ValueError, match="there are inpaint, denoise, svm"):
        diagnose_entry("ellipse-denoise", "denoising")
    with pytest.raises(TypeError, match="nothing to diagnose"):
        diagnose_entry("ellipse-denoise-lpd", "denoise", tmp_path, count=1, side=12)
    assert set(PROBLEMS) == {"inpaint", "denoise", "svm"}
