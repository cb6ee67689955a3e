"""Controls: the same method with the identity for its map."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from mirrordescent import AMD, LPD, MD, SMD, zoo
from mirrordescent.domains import PositiveOrthant
from mirrordescent.learn import Recipe, Settings, Unrolled, Validation, read_recipe
from mirrordescent.learn.control import without_map
from mirrordescent.learn.recipe import CONTROL
from mirrordescent.methods import Equipped
from mirrordescent.mirrors import Diagonal, Euclidean, MirrorMap, OrthantEntropy, Stencil
from mirrordescent.oracles import Rounded
from mirrordescent.recipes import RECIPES, recipe
from mirrordescent.schedules import Prefix
from mirrordescent.trees import leaves

sys.path.insert(0, str(Path(__file__).parent))
from bowls import Bowls


def maps(method):
    owners = [part for part in method.modules() if not isinstance(part, MirrorMap)]
    return [
        child
        for owner in owners
        for child in owner._modules.values()
        if isinstance(child, MirrorMap)
    ]


def test_only_the_maps_are_replaced():
    stencil = Stencil(0.7)
    steps = Prefix(torch.tensor([0.3, 0.2]), "reciprocal")
    method = Equipped(AMD(stencil, steps, regulariser=stencil, storage="primal"), Rounded(2.0))
    control = without_map(method)
    assert [type(each) for each in maps(control)] == [Euclidean, Euclidean]
    assert control.method.mirror is control.method.regulariser
    assert torch.equal(control.method.t.values, steps.values)
    assert isinstance(control.oracle, Rounded)
    assert method.method.mirror is stencil, "the method itself stays as it is"


@pytest.mark.parametrize("mirror", [Diagonal(torch.tensor([1.0, 3.0])), OrthantEntropy(0.2)])
def test_a_multiple_of_the_identity(mirror):
    x = torch.tensor([[1.0, 2.0]])
    y = torch.tensor([[4.0, -2.0]])
    (scaled,) = maps(without_map(MD(mirror, 0.1), 4.0))
    torch.testing.assert_close(scaled.to_dual(x), 4 * x)
    positive = isinstance(mirror.primal_domain, PositiveOrthant)
    torch.testing.assert_close(
        scaled.to_primal(y), torch.tensor([[1.0, 0.0 if positive else -0.5]])
    )


ENTRIES = [
    n
    for n in zoo.list()
    if not n.startswith(("image-tv-", "photo-prior"))  # priors and their steps have no map
    and not n.endswith(("reptile-init", "reptile-init-printed", CONTROL))
]


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_with_a_map_has_a_control(name):
    method = zoo.load(name)
    if not maps(method):
        with pytest.raises(TypeError, match="has no mirror map"):
            RECIPES[name].control().method(torch.Generator(), None)
        return
    control = without_map(method)
    assert not any(
        part.__class__.__name__ in ("LearnedPair", "Conjugate", "Stencil")
        for part in control.modules()
    )
    assert sum(p.numel() for p in control.parameters()) < sum(
        p.numel() for p in method.parameters()
    )


SETTINGS = Settings(
    meta_steps=3,
    batch=2,
    horizon=3,
    validation=Validation(every=1, batch=2, horizons=(1.0,)),
    seed=5,
)


def test_the_control_of_a_recipe_is_learned_alike(tmp_path):
    """The same stages, settings, seeds, family, validation: only the map differs, and the control's
    has no numbers.
    """

    def method(generator, family):
        return SMD(
            Diagonal(torch.nn.Parameter(torch.ones(2))), Prefix(torch.full((3,), 0.1), "reciprocal")
        ).double()

    original = Recipe(
        "bowls", "bowls", lambda directory: Bowls(), method, (Unrolled(SETTINGS),), problems=2
    )
    control = original.control()
    assert (control.name, control.stages, control.family) == (
        "bowls-control",
        original.stages,
        original.family,
    )
    cards = [
        zoo.card(each.train(tmp_path / "runs", tmp_path, progress=False))
        for each in (original, control)
    ]
    assert cards[0].stages[0]["settings"] == cards[1].stages[0]["settings"]
    assert (cards[0].parameters, cards[1].parameters) == (5, 3)
    learned = zoo.load(tmp_path / "bowls-control.safetensors")
    assert isinstance(learned.mirror, Euclidean)
    assert not torch.equal(learned.t.values, torch.full((3,), 0.1).double()), (
        "its schedules are learned"
    )
    assert next(leaves(learned.t.values)).isfinite().all()


def test_controls_by_name_and_by_document(tmp_path):
    assert recipe("photo-inpaint-pair-control").stages == RECIPES["photo-inpaint-pair"].stages
    assert recipe("image-tv-control") is RECIPES["image-tv-control"], (
        "one that is written out stays"
    )
    (tmp_path / "mine.toml").write_text(
        'control = true\n[family]\ntype = "moons"\n[map]\ntype = "diagonal"\n'
    )
    control = read_recipe(tmp_path / "mine.toml")
    assert control.name == "mine-control"
    assert isinstance(control.method(torch.Generator(), control.family(None)).mirror, Euclidean)
    (tmp_path / "mine.toml").write_text('control = "yes"\n[family]\ntype = "moons"\n')
    with pytest.raises((ValueError, TypeError), match="control"):
        read_recipe(tmp_path / "mine.toml")


def test_a_method_without_a_map_is_left_alone():
    assert maps(without_map(LPD())) == []
    with pytest.raises(ValueError, match="scale"):
        without_map(LPD(), 0.0)
