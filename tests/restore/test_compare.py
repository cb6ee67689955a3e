"""A learned method is judged against others."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent.learn import read_recipe
from mirrordescent.restore.compare import Contestant, compare
from mirrordescent.restore.compare import _words as words
from mirrordescent.schedules import PowerLaws

SMALL = {"count": 2, "size": 24, "iterations": 60}


def contestant(name, iterations, seconds):
    return Contestant(name, iterations, seconds, None)


def test_the_verdict_says_what_the_numbers_say():
    own = contestant("mine", (10, 40), (0.1, 0.4))
    pdhg = contestant("PDHG, tuned", (20, 30), (0.2, 0.2))
    control = contestant("mine without its map", (30, 90), (0.1, 0.2))
    shipped = contestant("image-tv", (5, 9), (0.01, 0.02))
    said = words([own, pdhg, control, shipped])
    assert "reaches 0.01 2.0 times as fast as tuned PDHG" in said
    assert "reaches 0.001 2.0 times as slow as tuned PDHG" in said
    assert "its map takes part in that" in said
    assert "image-tv would be faster" in said
    slow = contestant("mine", (None, None), (None, None))
    assert "does not reach 0.01; does not reach 0.001" in words([slow, pdhg, control])
    assert "does not help" in words([slow, pdhg, control])


def test_an_entry_is_compared_with_all_others(tmp_path):
    found = compare("photo-inpaint-stencil", "inpaint", **SMALL)
    assert [each.name for each in found.contestants] == [
        "photo-inpaint-stencil",
        "PDHG, tuned",
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
