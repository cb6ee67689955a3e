"""The release: versions, changelog, metadata, and the notes."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from pathlib import Path

import pytest
from building import release
from building.wheels import WheelError, build_source_archive

import mirrordescent

ROOT = Path(__file__).parents[1]
GOOD = "# Changelog\n\n## Unreleased\n\n## 1.2.3 – 2026-01-31\n\n- New.\n\n## 1.2.2\n\n- Old.\n"


def test_this_project_can_be_released():
    number = release.version()
    assert number == mirrordescent.__version__
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = release.HEADING.findall(text)
    assert headings[0] == "Unreleased"
    assert release.DATED.fullmatch(headings[1])[1] == number


def test_versions_that_differ_are_refused(tmp_path):
    for name in ("pyproject.toml", "experiments/pyproject.toml", "CITATION.cff"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    package = tmp_path / "src" / "mirrordescent"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "9.9.9"\n')
    with pytest.raises(release.ReleaseError, match=r"9\.9\.9 in src/mirrordescent/__init__\.py"):
        release.version(tmp_path)


def test_the_section_of_a_version():
    assert release.changelog_section(GOOD, "1.2.3") == "- New."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("## Unreleased\n\n", ""), "must begin"),
        (GOOD.replace("Unreleased\n", "Unreleased\n\n- Forgotten.\n"), "move the unreleased"),
        (GOOD.replace(" – 2026-01-31", ""), "YEAR-MM-DD"),
        (GOOD.replace("1.2.3", "1.2.4"), "must be ## 1.2.3"),
        (GOOD.replace("- New.\n", ""), "is empty"),
    ],
)
def test_changelogs_that_are_not_ready_are_refused(text, message):
    with pytest.raises(release.ReleaseError, match=message):
        release.changelog_section(text, "1.2.3")


def test_dates_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="day"):
        release.changelog_section(GOOD.replace("01-31", "02-31"), "1.2.3")


def test_the_source_archive_is_complete_and_notes_list_it(tmp_path):
    path = build_source_archive(tmp_path)
    release.check_sources(path)
    release.check_metadata(path, release.version())
    with pytest.raises(WheelError, match="Version is"):
        release.check_metadata(path, "9.9.9")
    text = release.notes("1.2.3", "- New.", [path])
    assert text.startswith("# mirrordescent 1.2.3\n\n- New.\n")
    assert f"| `{path.name}` |" in text


def archive_of(folder, files):
    path = folder / "mirrordescent-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"mirrordescent-1/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_archives_that_are_wrong_are_refused(tmp_path):
    files = dict.fromkeys(release.NEEDED_SOURCES, b"")
    release.check_sources(archive_of(tmp_path, files))
    with pytest.raises(WheelError, match="built files"):
        release.check_sources(archive_of(tmp_path, {**files, "src/a/_lib/kernels.so": b""}))
    del files["hatch_build.py"]
    with pytest.raises(WheelError, match=r"lacks hatch_build\.py"):
        release.check_sources(archive_of(tmp_path, files))
    bare = archive_of(
        tmp_path, {"PKG-INFO": b"Name: mirrordescent\nVersion: 1\nAuthor-email: a@b\n"}
    )
    with pytest.raises(WheelError, match=r"Keywords is missing.*address of an author"):
        release.check_metadata(bare, "1")


def test_the_workflow_runs_the_commands_of_continuous_integration():
    commands = re.findall(r"^make \w+", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert commands == ["make lint", "make test"]
    assert all(f"run: {command} " in workflow for command in commands)
    for system in ("ubuntu-latest", "macos-latest", "windows-latest"):
        assert system in workflow


@pytest.mark.parametrize("path", ["CITATION.cff", ".github/workflows/ci.yml", "pyproject.toml"])
def test_public_files_have_no_addresses_or_paths_of_machines(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert "@" not in text.replace("actions/checkout@", "").replace(
        "actions/setup-python@", ""
    ).replace("actions/upload-artifact@", "").replace("network-spectral@", "")
    assert not re.search(r"/(home|root|work|Users)/", text)
