"""Pages of results, built again from the summaries stored with them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from mirrordescent._internal.files import whole
from mirrordescent_experiments.result import Claim, Curve, Panel, Result, Table


def rebuild(folder: Path) -> list[Result]:
    """Write claims.md and index.html beside every summary.json below a folder, and an overview
    README.md into it.
    """
    paths = sorted(folder.glob("*/summary.json"))
    if not paths:
        raise FileNotFoundError(f"there is no summary of an experiment in {folder}")
    results = {path.parent: from_summary(path) for path in paths}
    for place, result in results.items():
        _write(place / "claims.md", result.markdown())
        result.page().write(place / "index.html")
    _write(folder / "README.md", _overview(results))
    return list(results.values())


def from_summary(path: Path) -> Result:
    """Return what a summary says about an experiment: everything but the pictures, with the mean of
    every curve.
    """
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        return Result(
            summary["experiment"],
            summary["title"],
            summary["settings"],
            panels={name: _panel(name, means) for name, means in summary["means"].items()},
            tables={name: Table(**table) for name, table in summary["tables"].items()},
            groups={
                name: {group: _numbers(values) for group, values in groups.items()}
                for name, groups in summary.get("groups", {}).items()  # older summaries have none
            },
            claims=[Claim(**claim) for claim in summary["claims"]],
            provenance=summary.get("provenance") or {},  # summaries from before 0.3 have none
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the summary of an experiment: {error!r}") from error


def _panel(name: str, means: dict[str, dict[str, float | None]]) -> Panel:
    curves = [
        Curve(
            method,
            [int(k) for k in values],
            [0.0] * len(values),
            _numbers(list(values.values())).unsqueeze(1),
        )
        for method, values in means.items()
    ]
    return Panel(curves, quantity=f"{name}, mean")


def _numbers(values: list[float | None]) -> Tensor:
    return torch.tensor([torch.nan if value is None else value for value in values])


def _overview(results: dict[Path, Result]) -> str:
    rows = [_row(place.name, result) for place, result in results.items()]
    return f"# Results\n\n{Table(('experiment', 'scale', 'claims that hold'), rows).markdown()}\n"


def _row(name: str, result: Result) -> tuple[str, str, str]:
    held = sum(claim.holds is True for claim in result.claims)
    claims = f"{held} of {len(result.claims)}" if result.claims else "none made"
    return f"[{result.title}]({name}/claims.md)", str(result.settings.get("scale", "")), claims


def _write(path: Path, text: str) -> None:
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
