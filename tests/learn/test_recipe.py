"""Recipes: what a document says, what stages do, and what the card tells of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import mirrordescent as md
from mirrordescent import zoo
from mirrordescent.learn import (
    Checkpointed,
    Descent,
    Evolution,
    Objective,
    ProblemFamily,
    Recipe,
    Settings,
    Truncated,
    Unrolled,
    Validation,
    read_recipe,
)
from mirrordescent.learn.network_families import moons_family
from mirrordescent.learn.recipe import Stage
from mirrordescent.learn.tables import changed, plain
from mirrordescent.mirrors import Diagonal, Layerwise, Multipliers, Spline, Stencil
from mirrordescent.schedules import Prefix

sys.path.insert(0, str(Path(__file__).parent))
import bowls

SETTINGS = Settings(
    meta_steps=30,
    batch=4,
    horizon=3,
    optimiser=Descent(learning_rate=0.05),
    validation=Validation(every=5, batch=4),
)


def recipe(*stages, **options):
    return Recipe(
        "bowls",
        "for bowls",
        lambda directory: bowls.Bowls(),
        lambda generator, family: bowls.untrained(),
        stages or (Unrolled(SETTINGS),),
        on="bowls",
        **options,
    )


def test_an_entry_is_made_with_its_card(tmp_path):
    path = recipe(use={"minibatch": 5}).train(tmp_path / "runs", tmp_path, progress=False)
    method = zoo.load(path)
    card = zoo.card(path)
    assert path == tmp_path / "bowls.safetensors"
    assert torch.equal(method.mirror.d, bowls.train(None).method.mirror.d)
    assert (card.name, card.description, card.kind, card.family) == (
        "bowls",
        "for bowls",
        "method",
        "bowls",
    )
    assert card.stages[0]["settings"] == plain(SETTINGS)
    assert 0 < card.stages[0]["best_meta_step"] <= 30
    assert card.parameters == 5
    assert card.use == {
        "minibatch": 5,
        "step_sizes": [round(t, 5) for t in method.t.values.tolist()],
    }
    draw = bowls.Bowls().validation(8)
    values = md.solve(draw.problem, method, draw.x0, iterations=10).value
    assert card.held_out["gap"]["10"] == pytest.approx(float(values.mean()))


class Doubled(Stage):
    """Doubles the step sizes, and says so."""

    name = "doubled"

    def run(self, module, family, **work):
        made = md.SMD(module.mirror, Prefix(2 * module.t.values.detach()))
        return made, {"stage": self.name, "use": {"factor": 2, "told": sorted(work)}}


def test_stages_follow_each_other_and_are_resumed_each_by_itself(tmp_path):
    frozen = Unrolled(SETTINGS, prepare=lambda method: method.requires_grad_(True), name="again")
    path = recipe(Unrolled(SETTINGS), Doubled(), frozen).train(
        tmp_path / "runs", tmp_path, progress=False
    )
    card = zoo.card(path)
    first = zoo.load(path).state_dict()
    assert [stage["stage"] for stage in card.stages] == ["unrolled", "doubled", "again"]
    assert card.use["factor"] == 2
    assert card.use["told"] == ["folder", "oracle", "progress", "resume"]
    logs = [tmp_path / "runs" / "bowls" / stage / "log.jsonl" for stage in ("unrolled", "again")]
    lengths = [len(log.read_text()) for log in logs]
    recipe(Unrolled(SETTINGS), Doubled(), frozen).train(tmp_path / "runs", tmp_path, progress=False)
    assert [len(log.read_text()) for log in logs] == lengths  # nothing was left to do
    assert zoo.card(path) == card
    assert all(
        torch.equal(zoo.load(path).state_dict()[name], tensor) for name, tensor in first.items()
    )
    with pytest.raises(ValueError, match="stages with different names"):
        recipe(Unrolled(SETTINGS), Unrolled(SETTINGS))


def test_changes_reach_all_stages(tmp_path):
    changes = ["meta_steps=20", "settings.optimiser.decay=constant"]
    stages = (Unrolled(SETTINGS), Doubled(), Unrolled(replace(SETTINGS, seed=1), name="again"))
    card = zoo.card(
        recipe(*stages).train(tmp_path / "runs", tmp_path, changes=changes, progress=False)
    )
    for i in (0, 2):
        settings = card.stages[i]["settings"]
        assert (settings["meta_steps"], settings["optimiser"]["decay"], settings["seed"]) == (
            20,
            "constant",
            i // 2,
        )
    with pytest.raises(ValueError, match="did you mean 'meta_steps'"):
        recipe().train(tmp_path / "runs", tmp_path, changes=["meta_step=20"])


def test_settings_come_back_from_tables():
    settings = replace(
        SETTINGS,
        curriculum=((5, 2),),
        step_bounds=None,
        seed=3,
        objective=Objective(
            "log_gap", every=(1, 3), differentiation=Truncated(30), through_gradient=False
        ),
    )
    assert plain(changed(Settings(), plain(settings), "settings")) == plain(settings)
    table = {"objective": {"differentiation": {"type": "evolution", "spread": 0.2}}}
    assert changed(
        settings, {"objective": {"differentiation": "checkpointed"}}, "settings"
    ).objective == replace(settings.objective, differentiation=Checkpointed())
    assert changed(Settings(), table, "settings").objective.differentiation == Evolution(spread=0.2)
    longer = changed(settings, {"objective": {"differentiation": {"segment": 40}}}, "settings")
    assert longer.objective.differentiation == Truncated(40)


def document(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read_recipe(path)


def made(tmp_path, text):
    """Return the method that a document makes."""
    found = document(tmp_path, text)
    return found.method(torch.Generator().manual_seed(0), found.family(None))


IMAGES = "family.size = 12\n"


@pytest.mark.parametrize(
    ("text", "check"),
    [
        (
            "map = {type = 'Stencil', damping = 0.5}",
            lambda m: isinstance(m, Stencil) and m.damping == 0.5,
        ),
        (
            "map = {type = 'Multipliers', groups = 0}",
            lambda m: isinstance(m, Multipliers) and m.count == 1,
        ),
        (
            "map = {type = 'diagonal'}",
            lambda m: isinstance(m, Diagonal) and m.d.shape == (3, 12, 12),
        ),
        ("map = {type = 'Diagonal', d = 2.0}", lambda m: isinstance(m, Diagonal) and m.d == 2),
        (
            "map = {type = 'Conjugate', start = 'exact', "
            "potential = {type = 'ConvICNN', channels = 3, filters = 2}}",
            lambda m: m.dual_potential.config()["filters"] == 2 and m.log_scale is None,
        ),
        ("map = {type = 'pair', filters = 2}", lambda m: not m.exact),
        ("", lambda m: m.log_scale is not None),
    ],
)
def test_any_map_of_the_library(tmp_path, text, check):
    method = made(tmp_path, IMAGES + text)
    assert check(method.mirror)
    assert isinstance(method, md.SMD)
    again = made(tmp_path, IMAGES + text)
    assert all(
        torch.equal(p, q) for p, q in zip(method.parameters(), again.parameters(), strict=True)
    )


def test_networks_are_learned_from_a_document(tmp_path):
    text = """
name = "half-circles"
family = {type = "moons", points = 40}
method = {name = "lmd", step = 0.1}
[settings]
meta_steps = 4
horizon = 4
batch = 2
step_bounds = [0.001, 10.0]
objective = {weights = "log_value", differentiation = {type = "truncated", segment = 2}}
optimiser.learning_rate = 0.1
validation = {every = 2, batch = 2, horizons = [1.0]}
"""
    path = document(tmp_path, text).train(tmp_path / "runs", tmp_path, progress=False)
    method = zoo.load(path)
    card = zoo.card(path)
    assert isinstance(method.mirror, Layerwise)
    assert sum(p.numel() for p in method.mirror.parameters()) == 5
    assert card.held_out["relative value"]["10"] < 1
    draw = moons_family(40).validation(2)
    assert (
        md.solve(draw.problem, method, draw.x0, iterations=10).value < draw.problem.value(draw.x0)
    ).all()
    splines = made(
        tmp_path,
        text.replace("method =", "map = {type = 'spline', ties = 'tensor', knots = 3}\nmethod ="),
    )
    assert all(
        isinstance(each, Spline) and each.knots == 3 for each in splines.mirror.by_name.values()
    )
    with pytest.raises(
        ValueError, match="must be one of diagonal, spline for networks, got 'pair'"
    ):
        made(tmp_path, text.replace("method =", "map = {type = 'pair'}\nmethod ="))


class Wide(ProblemFamily):
    def __init__(self, width=2):
        self.width = width

    def draw(self, seeds):
        centres = torch.stack(
            [
                torch.randn(self.width, generator=torch.Generator().manual_seed(int(s)))
                for s in seeds
            ]
        )
        problem = md.Quadratic(torch.linspace(1, 4, self.width), centre=centres)
        return md.learn.Draw(problem, torch.zeros_like(centres))


class Rough(md.mirrors.MirrorMap):
    """A map whose start is random, by torch's own generator."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.log_d = nn.Parameter(0.1 * torch.randn(width))

    def _to_dual(self, x):
        return self.log_d.exp() * x

    def _to_primal(self, y):
        return y / self.log_d.exp()


class Lazy(md.MD):
    """Mirror descent with shorter steps."""

    def __init__(self, mirror, t, share=1.0):
        super().__init__(mirror, t)
        self.share = share

    def update(self, state, grad):
        return super().update(state, self.share * grad)


def test_classes_of_ones_own_are_learned_saved_and_loaded(tmp_path):
    """Their module is imported: it is this one."""
    here = __name__
    text = f"""
family = {{type = "{here}:Wide", width = 3}}
map = {{type = "{here}:Rough", width = 3}}
method = {{name = "{here}:Lazy", share = 0.5}}
settings = {{meta_steps = 20, horizon = 3, optimiser = {{learning_rate = 0.1}}}}
"""
    state = torch.get_rng_state()
    method, again = (made(tmp_path, text) for _ in range(2))
    assert torch.equal(method.mirror.log_d, again.mirror.log_d)
    assert torch.equal(torch.get_rng_state(), state)
    path = document(tmp_path, text).train(tmp_path / "runs", tmp_path, progress=False)
    learned = zoo.load(path)
    assert (type(learned), type(learned.mirror), learned.share) == (Lazy, Rough, 0.5)
    assert zoo.card(path).requires == [here]
    assert not torch.equal(learned.mirror.log_d, method.mirror.log_d)
    with pytest.raises(ValueError, match="did you mean 'width'"):
        made(tmp_path, text.replace('Rough", width', 'Rough", widt'))
    with pytest.raises(ValueError, match="did you mean 'share'"):
        made(tmp_path, text.replace("share", "shar"))


def test_a_document_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "never_imported.py").write_text("raise RuntimeError('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for text in ("[map]\ntype = 'never_imported:Map'", "[method]\nname = 'never_imported:Method'"):
        with pytest.raises(
            ValueError, match="--import never_imported, or in Python import never_imported first"
        ):
            made(tmp_path, IMAGES + text)
    with pytest.raises(ValueError, match="has not been imported, and a document imports nothing"):
        document(tmp_path, "[family]\ntype = 'never_imported:Family'").family(None)
    lazy = type(sys)("lazy")  # imports what is asked of it on demand
    lazy.__getattr__ = lambda name: pytest.fail("it was asked")
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    with pytest.raises(ValueError, match="has no 'Map'"):
        made(tmp_path, IMAGES + "[map]\ntype = 'lazy:Map'")
