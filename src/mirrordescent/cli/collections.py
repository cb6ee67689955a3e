"""``mirrordescent zoo`` and ``mirrordescent data``: what there is, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tyro.conf import Positional
from tyro.extras import SubcommandApp

zoo = SubcommandApp()
data = SubcommandApp()


@zoo.command(name="list")
def list_entries(json: bool = False) -> None:
    """List the learned methods.

    Args:
        json: print them as JSON.
    """
    from mirrordescent import zoo
    from mirrordescent.cli.output import aligned, show

    cards = {name: zoo.card(name) for name in zoo.list()}
    show(cards, aligned([(name, card["kind"], card["description"]) for name, card in cards.items()]), json)


@zoo.command(name="show")
def show_entry(name: Positional[str], json: bool = False) -> None:
    """Show the card of a learned method: what it is for, how it was learned, what it achieves.

    For example: mirrordescent zoo show photo-inpaint-conjugate

    Args:
        name: of the entry, a .safetensors file, or hf://owner/repository/name.
        json: print it as JSON.
    """
    from mirrordescent import zoo
    from mirrordescent.cli.output import show

    card = zoo.card(name)
    show(card, _outline(card), json)


@zoo.command(name="verify")
def verify_entries(json: bool = False) -> int:
    """Check every shipped file against the checksum on its card.

    Args:
        json: print the outcome as JSON.
    """
    from mirrordescent import zoo
    from mirrordescent.cli.output import aligned, show

    found = zoo.verify()
    show(found, aligned([(name, "ok" if whole else "damaged") for name, whole in found.items()]), json)
    return 0 if all(found.values()) else 1


@data.command(name="list")
def list_datasets(directory: Path | None = None, json: bool = False) -> None:
    """List the data sets that can be read, and whether they are there.

    Args:
        directory: the data directory; MIRRORDESCENT_DATA by default.
        json: print them as JSON.
    """
    from mirrordescent import data
    from mirrordescent.cli.output import aligned, show

    found = {name: data.dataset(name) for name in data.names()}
    folder = data.data_directory(directory)
    there = {name: any((folder / name / f.path).is_file() for f in each.files) for name, each in found.items()}
    rows = [(name, "there" if there[name] else "not there", each.title) for name, each in found.items()]
    show({name: {**vars(each), "there": there[name]} for name, each in found.items()}, aligned(rows), json)


@data.command(name="verify")
def verify_datasets(names: Positional[tuple[str, ...]] = (), directory: Path | None = None, json: bool = False) -> int:
    """Check size and checksum of every file of the data sets. Some files are alternatives: not all need be there.

    Ends with 1 if a file is damaged, or if nothing is there of a data set that was named.

    For example: mirrordescent data verify mnist stl10

    Args:
        names: of the data sets; all by default.
        directory: the data directory; MIRRORDESCENT_DATA by default.
        json: print the outcome as JSON.
    """
    from mirrordescent import data
    from mirrordescent.cli.output import aligned, show

    found = {name: data.verify(name, directory) for name in names or data.names()}
    rows = [(f"{name}/{file}", status.value) for name, files in found.items() for file, status in files.items()]
    show({name: {file: s.value for file, s in files.items()} for name, files in found.items()}, aligned(rows), json)
    statuses = [set(files.values()) for files in found.values()]
    damaged = any(data.FileStatus.DAMAGED in each for each in statuses)
    absent = bool(names) and any(each == {data.FileStatus.MISSING} for each in statuses)
    return 1 if damaged or absent else 0


@data.command(name="path")
def data_path(name: Positional[str | None] = None, directory: Path | None = None) -> None:
    """Print the folder the data sets are looked for in, or that of one of them.

    Args:
        name: of a data set.
        directory: the data directory; MIRRORDESCENT_DATA by default.
    """
    from mirrordescent import data

    folder = data.data_directory(directory)
    print(folder if name is None else folder / data.dataset(name).name)


def _outline(card: dict[str, Any], depth: int = 0) -> list[str]:
    """Return nested data as indented lines."""
    lines = []
    for key, value in card.items():
        indent = "  " * depth
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *_outline(value, depth + 1)]
        else:
            text = str(value).replace("\n", f"\n{indent}  ")
            lines.append(f"{indent}{key}: {text}")
    return lines
