"""``mirrordescent data``: list, fetch and verify data sets."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

from mirrordescent.cli.output import AsJSON, DataDirectory, aligned, plain, show

app = SubcommandApp()
app.__doc__ = "List, fetch and verify data sets, or print their folder."


@app.command(name="list")
def list_datasets(directory: DataDirectory = None, json: AsJSON = False) -> None:
    """List the data sets that can be read, and whether their files exist."""
    from mirrordescent import data

    folder = data.data_directory(directory)
    rows = []
    report = {}
    for name in data.names():
        record = data.dataset(name)
        present = any((folder / name / file.path).is_file() for file in record.files)
        rows.append((name, "present" if present else "missing", record.title))
        report[name] = {**plain(record), "present": present}
    show(report, aligned(rows), json)


@app.command(name="verify")
def verify_datasets(
    names: Positional[tuple[str, ...]] = (), directory: DataDirectory = None, json: AsJSON = False
) -> int:
    """Check the size and the checksum of every file of the data sets.

    Some files are alternatives to each other, so that not all of them need to exist. The exit code
    is 1 if a file is damaged, or if one of the given data sets has no files.

    For example: mirrordescent data verify mnist stl10

    Args:
        names: Data sets to check; all by default.
    """
    from mirrordescent import data

    statuses = {name: data.verify(name, directory) for name in names or data.names()}
    report = {}
    rows = []
    for name, files in statuses.items():
        report[name] = {file: status.value for file, status in files.items()}
        rows += [(f"{name}/{file}", status.value) for file, status in files.items()]
    show(report, aligned(rows), json)
    for files in statuses.values():
        found = set(files.values())
        if data.FileStatus.DAMAGED in found:
            return 1
        if names and found == {data.FileStatus.MISSING}:
            return 1
    return 0


@app.command(name="fetch")
def fetch_dataset(
    name: Annotated[Positional[str], arg(metavar="NAME")],
    directory: DataDirectory = None,
    json: AsJSON = False,
) -> None:
    """Fetch the missing files of a data set, and check all of its files.

    If a file cannot be fetched, the message says where to get it and where to put it.

    For example: mirrordescent data fetch mnist

    Args:
        name: Data set to fetch.
    """
    from mirrordescent import data

    record = data.dataset(name)
    files = [file.path for file in record.files if file.url]
    if not files:  # nothing can be fetched: check the files that exist, or say where to get them
        folder = data.data_directory(directory) / name
        existing = [file.path for file in record.files if (folder / file.path).is_file()]
        files = existing or [record.files[0].path]
    paths = {file: data.require(name, file, directory) for file in files}
    show(paths, [f"{path}: intact" for path in paths.values()], json)


@app.command(name="path")
def data_path(name: Positional[str | None] = None, directory: DataDirectory = None) -> None:
    """Print the folder of the data sets, or the folder of one data set.

    Args:
        name: Data set.
    """
    from mirrordescent import data

    folder: Path = data.data_directory(directory)
    if name is not None:
        folder = folder / data.dataset(name).name
    print(folder)
