"""Where results come from, and which are stale."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from mirrordescent import zoo
from mirrordescent.cli import main
from mirrordescent.diagnosis.entries import diagnose_entry
from mirrordescent_experiments import code_hash, provenance
from mirrordescent_experiments.commands import results
from mirrordescent_experiments.diagnosis_pages import write
from mirrordescent_experiments.paper_claims import CLAIMS, paper_claims
from mirrordescent_experiments.rebuild import from_summary, rebuild
from mirrordescent_experiments.result import Curve, Panel, Result

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ENTRY = "photo-inpaint-lpd"


def test_a_fingerprint_is_of_what_an_entry_computes(tmp_path):
    entry = zoo.load(ENTRY)
    again = zoo.save(entry, tmp_path / "again", zoo.Card("again", "another card"))
    assert zoo.fingerprint(again) == zoo.fingerprint(ENTRY)
    with torch.no_grad():
        entry.theta[0] += 1e-6
    assert zoo.fingerprint(zoo.save(entry, tmp_path / "changed")) != zoo.fingerprint(ENTRY)


def test_entries_are_noted_as_they_are_loaded(tmp_path):
    mine = zoo.save(zoo.load(ENTRY), tmp_path / "mine")
    with provenance.recorded("3") as found:
        zoo.load(ENTRY)
        zoo.load(mine)
    zoo.load("photo-inpaint-pair")
    assert found["entries"] == {ENTRY: zoo.fingerprint(ENTRY)}
    assert found["seeds"] == "3"
    assert all(found[key] for key in ("commit", "date", "machine"))


def stored(folder, name, found):
    curve = Curve("LMD", [0, 10], [0.0, 1.0], torch.tensor([[3.0, 5.0], [1.0, 2.0]]))
    result = Result(name, name, {"scale": "quick"}, {"gaps": Panel([curve])}, provenance=found)
    (folder / name).mkdir()
    (folder / name / "summary.json").write_text(json.dumps(result.summary()))


def test_pages_whose_entries_are_not_those_shipped_are_found(tmp_path):
    with provenance.recorded("0") as good:
        zoo.load(ENTRY)
    stored(tmp_path, "good", good)
    stored(tmp_path, "older", good | {"entries": {ENTRY: "0" * 16}})
    stored(tmp_path, "gone", good | {"entries": {"not-shipped": "0" * 16}})
    stored(tmp_path, "unknown", {})
    (tmp_path / "page.md").write_text("# A page\n")
    (tmp_path / "marked.md").write_text(f"# A page\n\n{provenance.mark(good)}\n")
    wrong = provenance.check(tmp_path)
    assert [line.split()[0] for line in wrong] == ["gone", "older", "unknown", "page"]
    assert f"{ENTRY} has been learned anew" in wrong[1]
    (tmp_path / "stale.json").write_text(
        json.dumps({"gone": "", "older": "", "unknown": "", "page": "", "good": ""})
    )
    assert provenance.check(tmp_path) == ["good is listed as stale in stale.json, and is not"]


def test_sections_that_were_made_by_themselves_are_judged_by_themselves(tmp_path):
    with provenance.recorded("0") as good:
        zoo.load(ENTRY)
    first, other = (
        provenance.mark(good | each, section=True) for each in ({}, {"entries": {ENTRY: "0" * 16}})
    )
    text = f"# A page\n\n## First\n\n{first}\n\n## Second\n\nno mark\n\n## Third\n\n{other}\n"
    (tmp_path / "page.md").write_text(text)
    assert [line.split(" is stale")[0] for line in provenance.check(tmp_path)] == [
        "page: Second",
        "page: Third",
    ]


def package(tmp_path, name="mirrordescent_experiments", **files):
    """Write a package of modules, and return the folders to look in."""
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    for file, text in {"__init__": "", **files}.items():
        (folder / f"{file}.py").write_text(text)
    for cached in (code_hash._hash, code_hash._find, code_hash._tree, code_hash._imports):
        cached.cache_clear()
    code_hash._lazy.cache_clear()
    code_hash._normalised.cache_clear()
    return [tmp_path]


def test_the_hash_of_code_changes_with_the_code_alone(tmp_path):
    run = "from mirrordescent_experiments.steps import STEP\n\n\ndef run():\n    return STEP + 1\n"
    steps = "STEP = 3\nOTHER = 4\n"

    def hashed(run=run, steps=steps, **others):
        roots = package(tmp_path, run=run, steps=steps, unused="x = 1\n", **others)
        return code_hash.code_hash("mirrordescent_experiments.run", roots)

    first = hashed()
    assert hashed(run='"""A docstring."""\n\n' + run.replace("():", '():\n    """Run."""')) == first
    assert hashed(steps="# a comment\nSTEP  = 3\n\nOTHER=4\n") == first
    assert hashed(steps='STEP = 3\n"""The step."""\nOTHER = 4\n') == first
    assert hashed(unused2="y = 1\n") == first
    assert hashed(run=run.replace("+ 1", "+ 2")) != first
    assert hashed(steps=steps.replace("3", "2")) != first, "a module that it imports"
    assert hashed() == first


def test_imports_are_followed_through_packages_and_lazy_names(tmp_path):
    lazy = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
    lazy += "    from mirrordescent.late import late\n    from mirrordescent.never import never\n"
    package(tmp_path, "mirrordescent", __init__=lazy, late="def late(): ...", never="", cold="")
    run = "import mirrordescent as md\ndef f():\n    from . import inner\n    return md.late()\n"
    roots = package(tmp_path, run=run, inner="import torch\n")
    found = code_hash.dependencies("mirrordescent_experiments.run", roots)
    assert found.keys() == {
        "mirrordescent",
        "mirrordescent.late",
        "mirrordescent_experiments",
        "mirrordescent_experiments.inner",
        "mirrordescent_experiments.run",
    }
    with pytest.raises(ModuleNotFoundError, match="no module"):
        code_hash.code_hash("mirrordescent_experiments.gone", roots)


def test_the_sources_of_the_kernels_are_part_of_the_code():
    found = code_hash.dependencies("mirrordescent_experiments.svm")
    assert code_hash.KERNELS in found
    assert "mirrordescent.methods.accelerated" in found
    assert "mirrordescent.app" not in found


def test_pages_whose_code_changed_are_listed(tmp_path):
    folder = tmp_path / "docs" / "results"
    folder.mkdir(parents=True)
    module = "mirrordescent_experiments.intervals"
    with provenance.recorded("0", module) as good:
        zoo.load(ENTRY)
    assert good["code"] == {module: code_hash.code_hash(module)}
    stored(folder, "same", good)
    stored(folder, "changed", good | {"code": {module: "0" * 16}})
    stored(folder, "gone", good | {"code": {"mirrordescent_experiments.no_such": "0" * 16}})
    stored(folder, "older", {key: good[key] for key in good if key != "code"})
    changed = provenance.changed_code(folder)
    assert changed.keys() == {"changed", "gone", "older"}
    assert "or what it imports, has changed" in changed["changed"]
    assert "is gone" in changed["gone"]
    assert "not recorded" in changed["older"]
    assert provenance.check(folder) == [], "for information"
    (folder.parent / "guide.md").write_text("See [it](results/changed/claims.md).\n")
    (tmp_path / "README.md").write_text("```{claims} same\n```\n")
    (fault,) = provenance.check(folder, code=True)
    assert fault.startswith("changed is stale")
    assert "guide.md" in fault


def test_pages_that_guides_quote_are_known(tmp_path):
    folder = tmp_path / "docs" / "results"
    folder.mkdir(parents=True)
    stored(folder, "svm", {})
    stored(folder, "unquoted", {})
    mark = provenance.mark({"entries": {}}, section=True)
    text = f"# A page\n\n## How far\n\n{mark}\n\n## How fast\n\n{mark}\n"
    (folder / "benchmarks.md").write_text(text)
    (folder.parent / "guide.md").write_text(
        "```{claims} svm\n```\n[a](results/benchmarks.md#how-fast) [b](https://svm.org/x.md)\n"
    )
    (tmp_path / "README.md").write_text("[c](docs/results/svm/claims.md)\n")
    assert provenance.quoted(folder) == {
        "svm": ["guide.md", "README.md"],
        "benchmarks: How fast": ["guide.md"],
    }


def test_the_command_fails_where_the_check_does(tmp_path, monkeypatch, capsys):
    stored(tmp_path, "unknown", {})
    monkeypatch.setattr("sys.argv", ["mirrordescent", "results", str(tmp_path), "--check"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "unknown is stale" in capsys.readouterr().out


def test_code_is_compared_by_the_check_alone(tmp_path):
    with pytest.raises(ValueError, match="add --check"):
        results(tmp_path, code=True)


def test_the_pages_of_the_repository_are_those_of_the_entries_shipped():
    assert provenance.check(RESULTS) == []


def test_a_summary_keeps_runs_and_where_they_come_from(tmp_path):
    module = "mirrordescent_experiments.intervals"
    with provenance.recorded("0", module) as found:
        zoo.load(ENTRY)
    stored(tmp_path, "kept", found)
    summary = json.loads((tmp_path / "kept" / "summary.json").read_text())
    assert summary["runs"]["gaps"]["LMD"]["10"] == [1.0, 2.0]
    page = from_summary(tmp_path / "kept" / "summary.json").markdown()
    assert f"{ENTRY} {zoo.fingerprint(ENTRY)}" in page
    assert f"Code: {module} {code_hash.code_hash(module)}." in page
    stored(tmp_path, "old", {})
    assert "is not known" in from_summary(tmp_path / "old" / "summary.json").markdown()


def test_a_diagnosis_says_what_it_is_of(tmp_path):
    with provenance.recorded("0") as found:
        diagnosis = diagnose_entry(
            "ellipse-denoise-pair", "denoise", tmp_path, count=1, side=12, iterations=3
        )
    page = write(diagnosis, tmp_path / "page", found)
    assert "![bounds](bounds.png)" in page.read_text()
    for name in ("bounds", "energies", "errors"):
        assert (page.parent / f"{name}.png").stat().st_size > 5000
    assert json.loads(provenance.MARK.search(page.read_text())[1])["entries"].keys() == {
        "ellipse-denoise-pair"
    }


def test_every_claim_of_the_paper_is_judged_or_said_not_to_be_measured(tmp_path):
    assert len(CLAIMS) >= 25
    assert {claim.verdict for claim in paper_claims(tmp_path)} == {"not measured"}
    found = paper_claims(RESULTS)
    assert len(found) == len(CLAIMS) == len({claim.statement for claim in found})
    for claim in found:
        assert claim.verdict == "not measured" or any(
            character.isdigit() for character in claim.measured
        )


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"), [(1.0, 2.0, "holds"), (2.0, 1.0, "does not hold")]
)
def test_a_claim_of_the_paper_can_fail(tmp_path, ours, theirs, verdict):
    gaps = {"LAMD": ours, "GD": theirs, "Nesterov": theirs, "Adam": theirs, "LPD": theirs}
    wobble = torch.tensor([1.0, 1.01, 0.99])
    curves = [
        Curve(f"{n} (x)", [1000, 2000], [0.0, 1.0], torch.stack([g * wobble] * 2))
        for n, g in gaps.items()
    ]
    with provenance.recorded("0") as found:
        zoo.load(ENTRY)
    result = Result("denoise", "x", {}, {"comparison from y": Panel(curves)}, provenance=found)
    (tmp_path / "denoise").mkdir()
    (tmp_path / "denoise" / "summary.json").write_text(json.dumps(result.summary()))
    (claim,) = [
        c
        for c in paper_claims(tmp_path)
        if c.statement.startswith("denoising: LAMD ends below LPD")
    ]
    assert claim.verdict == verdict
    assert "margin in decades" in claim.measured
    assert "stale" not in claim.measured


def test_stored_pages_are_those_that_the_summaries_give(tmp_path):
    """So ``mirrordescent results`` leaves a clean clone clean."""
    copy = tmp_path / "results"
    for summary in RESULTS.glob("*/summary.json"):
        (copy / summary.parent.name).mkdir(parents=True)
        shutil.copy(summary, copy / summary.parent.name)
    rebuild(copy, tmp_path / "pages")
    written = {path.relative_to(copy) for path in copy.rglob("*") if path.is_file()}
    for path in written:
        assert (copy / path).read_bytes() == (RESULTS / path).read_bytes(), path
    assert {path.name for path in written} == {"summary.json", "claims.md", "README.md"}


def test_every_figure_of_a_page_can_be_drawn_from_its_summary(tmp_path):
    pages = "\n".join(path.read_text() for path in RESULTS.parent.glob("*.md"))
    blocks = re.findall(r"\{claims\} (\S+)\n(?::starting:[^\n]*\n)?:pictures: ([^\n]+)", pages)
    assert len(blocks) >= 10
    for name, files in blocks:
        result = from_summary(RESULTS / name / "summary.json")
        for file in files.split():
            assert Path(file).stem in result.figures(), f"{name}: {file}"
    result.draw(Path(file).stem, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 5000


def test_stored_summaries_are_written_again_as_they_are():
    """A result made from a summary has its means, axes, seconds and ranges."""
    for path in RESULTS.glob("*/summary.json"):
        stored = json.loads(path.read_text())
        again = from_summary(path).summary()
        for key in ("panels", "means", "seconds", "ranges", "tables", "claims", "groups"):
            assert again[key] == stored[key], (path, key)
