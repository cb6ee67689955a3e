"""The pages of the API reference that are split: every public name is on exactly one of them."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

API = Path(__file__).parents[1] / "docs" / "api"
ENTRY = re.compile(r"^\.\. auto(?:class|function):: (\w+)$", re.MULTILINE)
MEMBERS = re.compile(r"^   :members: (.+)$", re.MULTILINE)


@pytest.mark.parametrize("package", ["problems", "methods", "mirrors"])
def test_every_name_is_on_one_page(package):
    found = Counter()
    for path in API.glob(f"{package}*.md"):
        text = path.read_text(encoding="utf-8")
        found.update(ENTRY.findall(text))
        for members in MEMBERS.findall(text):
            found.update(members.split(", "))
    public = importlib.import_module(f"mirrordescent.{package}").__all__
    assert found == Counter(public)
    index = (API / "index.md").read_text(encoding="utf-8")
    for path in API.glob(f"{package}*.md"):
        assert f"\n{path.stem}\n" in index
