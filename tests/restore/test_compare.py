"""A learned method is judged against others."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent.learn import read_recipe
from mirrordescent.methods import Conditioned, Equipped, proven
from mirrordescent.mirrors import Stencil
from mirrordescent.oracles import Smoothed
from mirrordescent.restore.compare import ComparisonRow, _words as words, compare
from mirrordescent.schedules import PowerLaws

SMALL = {"count": 2, "size": 24, "iterations": 60}


def contestant(name, iterations, seconds):
    return ComparisonRow(name, iterations, seconds, None)


def test_the_verdict_says_what_the_numbers_say():
    own = contestant("mine", (10, 40), (0.1, 0.4))
    pdhg = contestant("PDHG, tuned", (20, 30), (0.2, 0.2))
    control = contestant("mine without its map", (30, 90), (0.1, 0.2))
    shipped = contestant("image-tv", (5, 9), (0.01, 0.02))
    said = words([own, pdhg, control, shipped])
    assert "reaches a gap of 0.01 2.0 times as fast as tuned PDHG" in said
    assert "takes 2.0 times as long as tuned PDHG to reach a gap of 0.001" in said
    assert "its map helps" in said
    assert "image-tv would be faster" in said
    slow = contestant("mine", (None, None), (None, None))
    assert "does not reach a gap of 0.01; does not reach a gap of 0.001" in words(
        [slow, pdhg, control]
    )
    assert "does not help" in words([slow, pdhg, control])


def test_an_entry_is_compared_with_all_others(tmp_path):
    found = compare("photo-inpaint-stencil", "inpaint", **SMALL)
    assert found.settings["entry"] == "photo-inpaint-stencil@1"
    assert [each.name for each in found.contestants] == [
        "photo-inpaint-stencil",
        "PDHG, tuned",
        "photo-inpaint-stencil without its map",
        "image-tv",
    ]
    for each in found.contestants:
        gaps = each.curve.values[:, 0].tolist()
        for level, reached in zip((1e-2, 1e-3), each.iterations, strict=True):
            first = next(
                (k for k, gap in zip(each.curve.iterations, gaps, strict=True) if gap <= level),
                None,
            )
            assert reached == first
    assert found.words.startswith("photo-inpaint-stencil ")
    page = found.page().write(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "iterations to 0.001" in page


def test_a_method_with_a_map_has_a_control_without_it():
    found = compare("ellipse-denoise-conjugate", "denoise", **SMALL)
    assert "ellipse-denoise-conjugate without its map" in [each.name for each in found.contestants]
    with pytest.raises(ValueError, match="not a method"):
        compare("omniglot-reptile-init", "denoise", **SMALL)


def wrapped(how):
    """AMD with a stencil inside other methods, as entries of the zoo are."""
    stencil = Stencil(0.6)
    first = md.AMD(stencil, 0.1, regulariser=stencil, storage="primal")
    if how == "equipped":
        return Equipped(first, Smoothed(0.01))
    if how == "conditioned":
        return Conditioned(first)
    return proven(first, after=5)  # switches to a primal-dual method


@pytest.mark.parametrize("how", ["equipped", "conditioned", "switched"])
def test_a_wrapped_method_with_a_map_has_a_control_without_it(tmp_path, how):
    path = md.zoo.save(wrapped(how), tmp_path / "mine")
    found = compare(path, "denoise", **SMALL)
    names = [each.name for each in found.contestants]
    assert names[:3] == ["mine", "PDHG, tuned", "mine without its map"]
    gaps = [float(each.curve.values[-1]) for each in found.contestants]
    assert gaps[2] != gaps[0], "the control is another method"
    assert "its map" in found.words


def test_a_method_without_a_map_has_no_control(tmp_path):
    path = md.zoo.save(md.PDHG(0.3), tmp_path / "mine")
    names = [each.name for each in compare(path, "denoise", **SMALL).contestants]
    assert "mine without its map" not in names


@pytest.mark.parametrize("kind", ["Stencil", "Spectral"])
def test_maps_of_frequencies_are_learned_from_a_document_with_power_laws(tmp_path, kind):
    document = tmp_path / "my.toml"
    document.write_text(f"""
        [family]
        size = 16
        [map]
        type = "{kind}"
        [method]
        name = "lamd"
        step = 0.05
        schedule = "power-laws"
        power = 0.5
        [settings]
        meta_steps = 3
        horizon = 5
        batch = 2
        [settings.validation]
        every = 1
        batch = 2
    """)
    method = md.zoo.load(
        read_recipe(document).train(tmp_path / "runs", tmp_path / "zoo", progress=False)
    )
    assert type(method.mirror).__name__ == kind
    assert isinstance(method.t, PowerLaws)
    assert method.t.counts == [1, 2, 4, 5]
    assert any(
        bool((p != q).any())
        for p, q in zip(method.t.parameters(), [torch.full((4,), 0.05).log()], strict=True)
    )


@pytest.mark.parametrize(
    "odd",
    [
        {"count": -1},
        {"count": 0},
        {"size": 0},
        {"weight": 0.0},
        {"iterations": -3},
        {"noise": -1.0},
        {"missing": 1.0},
    ],
    ids=str,
)
def test_impossible_numbers_are_named(odd):
    with pytest.raises(ValueError, match=f"{next(iter(odd))} must be"):
        compare("photo-inpaint-stencil", "inpaint", **{**SMALL, **odd})
