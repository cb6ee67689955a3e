"""``mirrordescent zoo`` and ``mirrordescent data``: what there is, and whether it is whole."""

from __future__ import annotations

from tyro.conf import Positional
from tyro.extras import SubcommandApp

from mirrordescent import zoo
from mirrordescent.cli.lab import lab
from mirrordescent.cli.output import AsJSON, DataDirectory, aligned, outline, plain, show

zoo_app, data_app = SubcommandApp(), SubcommandApp()


@zoo_app.command(name="list")
def list_entries(json: AsJSON = False) -> None:
    """List the learned methods."""
    cards = {name: zoo.card(name) for name in zoo.list()}
    show(cards, aligned([(name, card.kind, card.description) for name, card in cards.items()]), json)


@zoo_app.command(name="show")
def show_entry(name: Positional[str], json: AsJSON = False) -> None:
    """Show the card of a learned method: what it is for, how it was learned, what it achieves.

    For example: mirrordescent zoo show photo-inpaint-conjugate

    Args:
        name: an entry of the zoo, a .safetensors file, or hf://owner/repository/name.
    """
    card = zoo.card(name)
    show(card, outline(plain(card)), json)


@zoo_app.command(name="verify")
def verify_entries(json: AsJSON = False) -> int:
    """Check the file of every entry against its checksum, and the card beside it.

    The exit code is 1 if a file is damaged.
    """
    found = zoo.verify()
    show(found, aligned([(name, "ok" if whole else "damaged") for name, whole in found.items()]), json)
    return 0 if all(found.values()) else 1


@data_app.command(name="list")
def list_datasets(directory: DataDirectory = None, json: AsJSON = False) -> None:
    """List the data sets that can be read, and whether they are there."""
    data = lab("data")
    folder, found = data.data_directory(directory), {name: data.dataset(name) for name in data.names()}
    there = {name: any((folder / name / file.path).is_file() for file in each.files) for name, each in found.items()}
    rows = [(name, "there" if there[name] else "not there", each.title) for name, each in found.items()]
    show({name: {**plain(each), "there": there[name]} for name, each in found.items()}, aligned(rows), json)


@data_app.command(name="verify")
def verify_datasets(
    names: Positional[tuple[str, ...]] = (), directory: DataDirectory = None, json: AsJSON = False
) -> int:
    """Check size and checksum of every file of the data sets. Some files are alternatives: not all need be there.

    The exit code is 1 if a file is damaged, or if a data set was named of which no file is there.

    For example: mirrordescent data verify mnist stl10

    Args:
        names: the data sets; all by default.
    """
    data = lab("data")
    found = {name: data.verify(name, directory) for name in names or data.names()}
    report = {name: {file: status.value for file, status in files.items()} for name, files in found.items()}
    show(report, aligned([(f"{name}/{file}", s) for name, files in report.items() for file, s in files.items()]), json)
    statuses = [set(files.values()) for files in found.values()]
    damaged = any(data.FileStatus.DAMAGED in each for each in statuses)
    return 1 if damaged or (names and {data.FileStatus.MISSING} in statuses) else 0


@data_app.command(name="path")
def data_path(name: Positional[str | None] = None, directory: DataDirectory = None) -> None:
    """Print the folder in which data sets are looked for, or the folder of one of them.

    Args:
        name: a data set.
    """
    data = lab("data")
    folder = data.data_directory(directory)
    print(folder if name is None else folder / data.dataset(name).name)
