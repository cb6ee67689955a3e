"""Build the pages of results from the stored summaries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mirrordescent._internal.files import whole
from mirrordescent_experiments.result import Claim, Curve, Panel, Range, Result, Table


def rebuild(folder: Path, pages: Path) -> list[Result]:
    """Write the pages of all experiments from their summaries.

    Args:
        folder: Folder with a subfolder and a summary.json for every experiment. Every subfolder
            gets its claims.md, and the folder gets an overview README.md.
        pages: Folder for the HTML pages, NAME/index.html for every experiment.
    """
    results = stored_results(folder)
    for name, result in results.items():
        _write(folder / name / "claims.md", result.markdown())
        result.page().write(pages / name / "index.html")
    _write(folder / "README.md", _overview(results))
    return list(results.values())


def stored_results(folder: Path) -> dict[str, Result]:
    """Return the stored results of a folder by the names of its subfolders."""
    paths = sorted(folder.glob("*/summary.json"))
    if not paths:
        raise FileNotFoundError(f"there is no summary of an experiment in {folder}")
    return {path.parent.name: from_summary(path) for path in paths}


def from_summary(path: Path) -> Result:
    """Return the stored result of an experiment: all but its pictures, with the mean curves."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        return Result(
            summary["experiment"],
            summary["title"],
            summary["settings"],
            panels={name: _panel(name, summary) for name in summary["means"]},
            tables={name: Table(**table) for name, table in summary["tables"].items()},
            groups={
                name: {group: _numbers(values) for group, values in groups.items()}
                for name, groups in summary.get("groups", {}).items()
            },
            claims=[Claim(**claim) for claim in summary["claims"]],
            provenance=summary.get("provenance") or {},
            ranges={
                name: {method: _range(values) for method, values in methods.items()}
                for name, methods in summary.get("ranges", {}).items()
            },
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the summary of an experiment: {error!r}") from error


def _panel(name: str, summary: dict[str, Any]) -> Panel:
    """Return the mean curves of a panel."""
    seconds = summary.get("seconds", {}).get(name, {})
    curves = []
    for method, means in summary["means"][name].items():
        values = _numbers(list(means.values())).unsqueeze(1)
        moments = _numbers(seconds[method]).tolist() if method in seconds else [0.0] * len(means)
        curves.append(Curve(method, [int(k) for k in means], moments, values))
    axes = summary.get("panels", {}).get(name)
    if axes is None:
        return Panel(curves, quantity=f"{name}, mean")
    return Panel(curves, axes["quantity"], axes["against"], tuple(axes["scales"]))


def _range(values: list[list[float | None]]) -> Range:
    low, high = values
    return _numbers(low), _numbers(high)


def _numbers(values: list[float | None]) -> Tensor:
    numbers = [torch.nan if value is None else value for value in values]
    return torch.tensor(numbers, dtype=torch.float64)


def _overview(results: dict[str, Result]) -> str:
    rows = [_row(name, result) for name, result in results.items()]
    return f"# Results\n\n{Table(('experiment', 'scale', 'claims that hold'), rows).markdown()}\n"


def _row(name: str, result: Result) -> tuple[str, str, str]:
    title = f"[{result.title}]({name}/claims.md)"
    scale = str(result.settings.get("scale", ""))
    if not result.claims:
        return title, scale, "none made"
    held = sum(claim.holds is True for claim in result.claims)
    return title, scale, f"{held} of {len(result.claims)}"


def _write(path: Path, text: str) -> None:
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
