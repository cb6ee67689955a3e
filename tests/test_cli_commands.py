"""The other commands, as a user meets them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch

from mirrordescent import cli, zoo
from mirrordescent.learn.trainer import NothingLearned
from mirrordescent.parts import PartMissing
from mirrordescent_experiments import reproduction
from mirrordescent_experiments.paper_claims import CLAIMS
from mirrordescent_experiments.result import Claim, Curve, Panel, Result, Table


def run(monkeypatch, *arguments):
    """Return the exit code."""
    monkeypatch.setattr(sys, "argv", ["mirrordescent", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


def one_line(capsys):
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    return error[0]


def test_the_zoo_is_listed_shown_and_verified(monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, "zoo", "list") == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()] == zoo.list()
    assert run(monkeypatch, "zoo", "show", "photo-inpaint-conjugate", "--json") == 0
    assert json.loads(capsys.readouterr().out) == zoo.card("photo-inpaint-conjugate").to_data()
    assert run(monkeypatch, "zoo", "show", "photo-inpaint-conjugate") == 0
    shown = capsys.readouterr().out
    stages = "stages:\n  1:\n    stage: unrolled\n    settings:"
    for lines in ("data:\n  bsds500: ", stages, "held_out:\n  problems: 8", "requires: none"):
        assert lines in shown
    assert run(monkeypatch, "zoo", "verify", "--json") == 0
    assert json.loads(capsys.readouterr().out) == dict.fromkeys(zoo.list(), True)


def test_damage_in_the_zoo_ends_with_1(monkeypatch, capsys, tmp_path):
    shutil.copytree(zoo.FOLDER, tmp_path / "entries")
    path = tmp_path / "entries" / "photo-inpaint-pair.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    monkeypatch.setattr(zoo, "FOLDER", tmp_path / "entries")
    assert run(monkeypatch, "zoo", "verify") == 1
    assert re.search(r"^photo-inpaint-pair +damaged$", capsys.readouterr().out, re.MULTILINE)


def test_data_sets_are_listed_and_verified(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("MIRRORDESCENT_DATA", str(tmp_path))
    assert run(monkeypatch, "data", "path", "mnist") == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "mnist")
    assert run(monkeypatch, "data", "verify") == 0  # nothing is there, and nothing was asked for
    assert run(monkeypatch, "data", "verify", "mnist") == 1
    capsys.readouterr()
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    assert run(monkeypatch, "data", "verify", "--json") == 1
    assert json.loads(capsys.readouterr().out)["mnist"]["t10k-labels-idx1-ubyte.gz"] == "damaged"
    assert run(monkeypatch, "data", "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["mnist"]["present"]
    assert listed["mnist"]["files"][0]["path"] == "train-images-idx3-ubyte.gz"
    assert not listed["stl10"]["present"]


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (("zoo", "show", "photo-inpant-pair"), "photo-inpaint-pair"),
        (("data", "verify", "minst"), "mnist"),
        (("data", "path", "stl-10"), "stl10"),
        (("reproduce", "inpant"), "inpaint"),
        (("learn", "photo-inpaint-conjugated"), "photo-inpaint-conjugate"),
        (("diagnose", "photo-inpant-pair", "--problem", "inpaint"), "photo-inpaint-pair"),
    ],
)
def test_unknown_names_answer_with_the_nearest(monkeypatch, capsys, tmp_path, arguments, nearest):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == 2
    assert f"did you mean '{nearest}'?" in one_line(capsys)
    assert list(tmp_path.iterdir()) == []


def result():
    panel = Panel(
        [
            Curve(
                "LMD",
                [0, 1, 10],
                [0.0, 0.1, 1.0],
                torch.tensor([[3.0, 5.0], [2.0, 2.0], [1.0, torch.nan]]),
            )
        ]
    )
    return Result(
        "tiny",
        "A tiny experiment",
        {"scale": "quick"},
        panels={"comparison": panel},
        tables={"times": Table(("method", "s"), [("LMD", "1.0")])},
        groups={"gaps": {"LMD": torch.tensor([0.5, 0.25])}},
        claims=[Claim("it converges", True, "1.0"), Claim("it is fast", False, "no")],
    )


def test_an_experiment_is_run_and_summed_up(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(
        reproduction.EXPERIMENTS,
        "tiny",
        lambda scale, directory, say: (say("working"), result())[1],
    )
    monkeypatch.setattr(Result, "write", lambda self, folder: None)
    assert (
        run(monkeypatch, "reproduce", "tiny", "--scale", "quick", "--out", tmp_path, "--json") == 0
    )
    printed = capsys.readouterr()
    assert json.loads(printed.out)["tiny"]["claims"][1]["holds"] is False
    assert "working" in printed.err
    assert run(monkeypatch, "reproduce", "tiny", "--out", tmp_path) == 0
    printed = capsys.readouterr().out
    assert "| it is fast | **does not hold** | no |" in printed
    assert f"written to {tmp_path / 'tiny'}" in printed


def test_pages_are_built_again_from_summaries(monkeypatch, capsys, tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "summary.json").write_text(json.dumps(result().summary()))
    assert run(monkeypatch, "results", tmp_path, "--out", tmp_path / "pages") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path / 'tiny'}: 1 of 2 claims hold"
    assert sum(line.startswith("not measured") for line in lines) == len(CLAIMS), (
        "none of the paper's is in this folder"
    )
    assert (tmp_path / "tiny" / "claims.md").read_text() == result().markdown()
    page = (tmp_path / "pages" / "tiny" / "index.html").read_text(encoding="utf-8")
    assert "it converges" in page
    assert "LMD" in page
    assert (
        "[A tiny experiment](tiny/claims.md) | quick | 1 of 2"
        in (tmp_path / "README.md").read_text()
    )
    (tmp_path / "tiny" / "summary.json").write_text("{}")
    assert run(monkeypatch, "results", tmp_path) == 2
    assert "summary.json is not the summary of an experiment" in one_line(capsys)
    assert run(monkeypatch, "results", tmp_path / "absent") == 2


CONFIG = """
name = "mine"

[family]
type = "inpainting"
size = 12

[map]
type = "conjugate"
filters = 4

[method]
name = "lsmd"
step = 0.2

[settings]
meta_steps = 4
horizon = 3
batch = 2
save_every = 2
validation = {every = 2, batch = 2}
"""


def test_a_map_is_learned_from_a_file_and_used(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(CONFIG)
    assert (
        run(
            monkeypatch,
            "learn",
            "mine.toml",
            "--set",
            "settings.meta_steps=2",
            "--set",
            "map.layers=2",
        )
        == 0
    )
    assert "entry: out/zoo/mine.safetensors" in capsys.readouterr().out
    card = zoo.card("out/zoo/mine.safetensors")
    assert card.stages[0]["settings"]["meta_steps"] == 2
    assert card.family == "type = inpainting, size = 12"
    assert card.held_out["problems"] == 2
    assert card.held_out["relative value"]["10"] < card.held_out["relative value"]["start"] == 1
    method = zoo.load("out/zoo/mine.safetensors")
    assert method.mirror.dual_potential.layers == 2
    assert len(method.t.values) == 3
    arguments = (
        "learn",
        "mine.toml",
        "--set",
        "settings.meta_steps=2",
        "--set",
        "map.layers=2",
        "--json",
    )
    assert run(monkeypatch, *arguments) == 0  # goes on where it stopped: at its end
    report = json.loads(capsys.readouterr().out)
    assert report["best validation"] == card.stages[0]["best_validation"]
    assert "tuned PDHG" in report["verdict"] or "does not reach" in report["verdict"]
    assert report["at meta-step"] == card.stages[0]["best_meta_step"] > 0
    assert run(monkeypatch, "learn", "mine.toml", "--set", "map.layers=2") == 2
    assert "holds a run with other settings" in capsys.readouterr().err
    assert run(monkeypatch, "learn", "mine.toml", "--no-resume") == 0


OWN = """
import torch
from torch import nn
import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily

class Bowls(ProblemFamily):
    def __init__(self, width=2):
        self.width = width
    def draw(self, seeds):
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        centres = torch.stack([torch.randn(self.width, generator=each) for each in generators])
        problem = md.Quadratic(torch.linspace(1, 4, self.width), centre=centres)
        return Draw(problem, torch.zeros_like(centres))

class Stretch(md.mirrors.MirrorMap):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.log_d = nn.Parameter(torch.zeros(width))
    def _potential(self, x):
        return (self.log_d.exp() * x.square()).sum(-1) / 2
    def _to_dual(self, x):
        return self.log_d.exp() * x
    def _to_primal(self, y):
        return y / self.log_d.exp()
"""


def own_document(folder, module="bowls_of_mine"):
    (folder / f"{module}.py").write_text(OWN)
    document = CONFIG.replace('"inpainting"\nsize = 12', f'"{module}:Bowls"\nwidth = 3')
    document = document.replace('"conjugate"\nfilters = 4', f'"{module}:Stretch"\nwidth = 3')
    document = document.replace("meta_steps = 4", "meta_steps = 60\noptimiser.learning_rate = 0.1")
    (folder / "bowls.toml").write_text(document)
    return folder / "bowls.toml"


def test_a_document_imports_nothing(monkeypatch, capsys, tmp_path):
    path = own_document(tmp_path, "bowls_not_imported")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # it could be imported, and is not
    assert run(monkeypatch, "learn", path) == 2
    message = one_line(capsys)
    assert "bowls_not_imported:Bowls is in a module that has not been imported" in message
    assert (
        "give --import bowls_not_imported, or in Python import bowls_not_imported first" in message
    )
    assert "bowls_not_imported" not in sys.modules
    assert run(monkeypatch, "learn", path, "--import", "bowls_nowhere") == 2
    assert "No module named 'bowls_nowhere'" in one_line(capsys)


def test_families_and_maps_of_ones_own(monkeypatch, capsys, tmp_path):
    path = own_document(tmp_path)
    out = tmp_path / "out"
    arguments = (
        "learn",
        path,
        "--runs",
        tmp_path / "runs",
        "--out",
        out,
        "--import",
        "bowls_of_mine",
    )
    before = list(sys.path)
    assert run(monkeypatch, *arguments) == 0
    assert sys.path == before
    card = zoo.card(out / "mine.safetensors")
    learned = zoo.load(out / "mine.safetensors")
    assert card.requires == ["bowls_of_mine"]
    assert type(learned.mirror) is sys.modules["bowls_of_mine"].Stretch
    assert not torch.equal(learned.mirror.log_d, torch.zeros(3))
    assert learned.mirror.log_d.argmax() == 2  # the steepest direction is stretched most
    script = f"import mirrordescent as md; md.zoo.load({str(out / 'mine.safetensors')!r})"

    def in_another(text):
        return subprocess.run(
            [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    refused = in_another(script)
    assert refused.returncode == 1
    assert (
        f"{PartMissing.__name__}: {out / 'mine.safetensors'} cannot be loaded yet" in refused.stderr
    )
    assert "import bowls_of_mine, then load" in refused.stderr
    assert in_another(f"import bowls_of_mine; {script}").returncode == 0


def test_what_cannot_be_stored_is_refused_before_it_is_learned(monkeypatch, capsys, tmp_path):
    path = own_document(tmp_path, "forgetful_bowls")
    module = tmp_path / "forgetful_bowls.py"
    module.write_text(
        module.read_text().replace(
            "        self.width = width\n        self.log_d", "        self.log_d"
        )
    )
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "learn", path, "--import", "forgetful_bowls") == 2
    assert "Stretch cannot be stored: its constructor takes 'width'" in one_line(capsys)
    assert not (tmp_path / "runs").exists()


def test_nothing_learned_ends_with_1(monkeypatch, capsys, tmp_path, recwarn):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(CONFIG)
    assert (
        run(monkeypatch, "learn", "mine.toml", "--set", "settings.optimiser.learning_rate=100.0")
        == 1
    )
    printed = capsys.readouterr()
    assert "entry: out/zoo/mine.safetensors" in printed.out
    assert "mirrordescent: in stage unrolled, SMD was not learned: " in printed.err.splitlines()[-1]
    assert "best_step is 0" in printed.err.splitlines()[-1]
    assert "was not learned" in zoo.card("out/zoo/mine.safetensors").stages[0]["failure"]
    assert not [each for each in recwarn if issubclass(each.category, NothingLearned)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("settings.meta_step=3", "did you mean 'meta_steps'?"),
        ("family.type=inpaintin", "did you mean 'inpainting'?"),
        ("map.type=conjugat", "did you mean 'conjugate'?"),
        ("method.nam=lamd", "did you mean 'name'?"),
        ("method.name=lamdd", "did you mean 'lamd'?"),
        ("setings.horizon=3", "did you mean 'settings'?"),
        ("settings.horizon=0", "horizon must be at least 1"),
        ("settings.objective.weights=log_gaps", "weights must be one of"),
        ("family.source=nowhere", "nowhere"),
        ("settings.objective.weights=[1]", "weights must be one of"),
        ("settings.objective.differentiation=ful", "did you mean 'full'?"),
        (
            "settings.objective.differentiation={type='truncated', segment=0}",
            "segment must be at least 1",
        ),
        (
            "settings.objective.differentiation={type='truncated', segmnt=3}",
            "did you mean 'segment'?",
        ),
        (
            "settings.objective.differentiation=3",
            "settings.objective.differentiation must be a table",
        ),
        ("settings.objective=3", "settings.objective must be a table"),
        ("settings.horizon=ten", "settings.horizon cannot be text"),
        ("settings.learning_rate=0.1", "it is settings.optimiser.learning_rate now"),
        ("settings.clip=2.0", "it is settings.optimiser.clip now"),
        ("settings.validate_every=5", "it is settings.validation.every now"),
        ("settings.validation_batch=5", "it is settings.validation.batch now"),
        ("settings.validation_horizons=[1.0]", "it is settings.validation.horizons now"),
        ("settings.patience=5", "it is settings.validation.patience now"),
        ("settings.objective.segment=5", 'differentiation = {type = "truncated", segment = …} now'),
        ("settings.objective.pairs=5", 'differentiation = {type = "evolution", pairs = …} now'),
        ("map={type='Stencl'}", "did you mean 'Stencil'?"),
        ("map={type='Stencil', dampin=0.5}", "did you mean 'damping'?"),
        ("map={type='spline'}", "did you mean 'Spline'?"),
        ("family={type='moons', size=3}", "size"),
        ("family.type=json:Missing", "the module json has no 'Missing'"),
        ("family.type=json:JSONDecoder", "json:JSONDecoder is not a ProblemFamily"),
        ("family.type=no_such_module:Family", "--import no_such_module"),
        ("map={type='json:JSONDecoder'}", "json:JSONDecoder is not a MirrorMap"),
        ("map={type='no_such_module:Map'}", "--import no_such_module"),
        ("method={name='json:JSONDecoder'}", "json:JSONDecoder is not a Method"),
        ("name=../mine", "must not be a path"),
        ("name=..", "must not be a path"),
        ('name=""', "must not be a path"),
        ("name=nan", "name must be text"),
        ("settings.validation.batch=inf", "settings.validation.batch must be a whole number"),
        ("settings.meta_steps=2.5", "settings.meta_steps must be a whole number"),
        (
            "settings.optimiser.learning_rate=nan",
            "settings.optimiser.learning_rate must be a finite number",
        ),
        ("settings.optimiser.betas=[0.9]", "settings.optimiser.betas must be a list of 2"),
        ("settings.validation.geometric=1", "settings.validation.geometric must be true or false"),
        ("settings.horizon=99999999999", "horizon must be at most"),
        ("settings.validation.batch=1000000", "batch must be at most 10000"),
        ("map.layers=99999999999", "[map] layers must be at most"),
        ("map.layers=1000000", "[map] layers must be at most 1000"),
        ("map.filters=1000000", "[map] filters must be at most 4096"),
        ("map.filters='a'", "[map] filters must be a whole number"),
        ("family.size=1.5", "[family] size must be a whole number"),
        ("family.pool=-1", "the size of a pool must be at least 1"),
        ("nonsense", "a change must have the form key=value"),
    ],
)
def test_mistakes_in_a_config_end_in_one_line(monkeypatch, capsys, tmp_path, change, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(CONFIG)
    assert run(monkeypatch, "learn", "mine.toml", "--set", change) == 2
    assert message in one_line(capsys)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["mine.toml"]


def test_other_mistakes_in_learning(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("name = ")
    assert run(monkeypatch, "learn", "bad.toml") == 2
    assert "bad.toml is not a TOML document" in one_line(capsys)
    assert run(monkeypatch, "learn", "absent.toml") == 2
    assert "absent.toml" in one_line(capsys)
    (tmp_path / "mine.toml").write_text(CONFIG)
    assert run(monkeypatch, "learn", "mine.toml", "--device", "nowhere") == 2
    assert "the device nowhere cannot be used here" in one_line(capsys)
    assert run(monkeypatch, "bench") == 2
    assert "there are no benchmarks in" in one_line(capsys)


def test_help_has_examples(monkeypatch, capsys):
    for command in (
        ("solve", "inpaint"),
        ("solve", "denoise"),
        ("learn",),
        ("reproduce",),
        ("diagnose",),
    ):
        assert run(monkeypatch, *command, "--help") == 0
        assert (
            f"mirrordescent {' '.join(command)}"
            in capsys.readouterr().out.split("For example", 1)[1]
        )


def test_a_library_that_is_missing_is_a_mistake_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert run(monkeypatch, "zoo", "show", "hf://owner/maps/photo") == 2
    assert "pip install 'mirrordescent[hub]'" in one_line(capsys)


def test_importing_the_package_takes_little_longer_than_importing_torch():
    script = (
        "from time import perf_counter as now\n"
        "a = now()\nimport torch\nb = now()\nimport mirrordescent\nc = now()\n"
        "print((c - a) / (b - a))"
    )

    def ratio():
        return float(
            subprocess.run(
                [sys.executable, "-c", script], check=True, capture_output=True, text=True
            ).stdout
        )

    assert any(ratio() < 1.2 for _ in range(3))  # a busy moment may hit one of the two imports


WITHOUT_PLUGINS = """
import sys
from importlib import metadata
from mirrordescent import cli
sys.modules["mirrordescent_experiments"] = None
metadata.distributions = lambda **_: iter(())
sys.argv = ["mirrordescent", *sys.argv[1:]]
cli.main()
"""


def test_commands_of_the_experiments_appear_only_if_they_are_installed():
    script = [sys.executable, "-c", WITHOUT_PLUGINS]
    shown = subprocess.run([*script, "--help"], capture_output=True, text=True, check=True).stdout
    for name in ("demo", "data", "diagnose", "learn"):
        assert re.search(rf"\b{name}\b", shown)
    for name in ("reproduce", "results", "bench"):
        assert not re.search(rf"\b{name}\b", shown)
        done = subprocess.run([*script, name], capture_output=True, text=True, check=False)
        assert done.returncode == 2


WITHOUT_THE_EXPERIMENTS = """
import pkgutil, sys
sys.modules["mirrordescent_experiments"] = None
import mirrordescent
for each in pkgutil.walk_packages(mirrordescent.__path__, "mirrordescent."):
    __import__(each.name)
model = mirrordescent.learn.network_families.moons_family(4).problem.model
print(sum(p.numel() for p in model.parameters()))
"""


def test_the_library_does_not_need_the_experiments():
    printed = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_EXPERIMENTS], check=True, capture_output=True, text=True
    ).stdout
    assert printed.split() == ["201"]
