"""Small changes to the mathematics of the library, one at a time: does a test of the package notice
each of them?

Written for this project because the sample has to be seeded, the tests of each change chosen by the
line it is on, and a run continued after an interruption, on a machine that is shared: mutmut runs
all mutants of a tree from a copy of it, and cosmic-ray rewrites the working tree in place.

    python -m campaigns.mutants cover               which tests reach which lines, once python -m
    campaigns.mutants run --count 420     try that many, or go on with them; write the page
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mirrordescent"
MUTATED = ("methods", "theory", "references", "schedules.py", "oracles.py")
TESTS = (
    "tests/test_schedules.py",
    "tests/test_oracles.py",
    "tests/test_one_file.py",
    "tests/test_storage.py",
    "tests/methods",
    "tests/theory",
    "tests/references",
    "tests/solve",
    "tests/test_conditioning.py",
    "tests/optim/test_equal_to_methods.py",
    "tests/optim/test_preconditioned.py",
)
PAGE = ROOT / "docs" / "results" / "mutants.md"
SLOWEST = (
    40.0  # seconds of a test above which it is not run: there are faster ones on the same lines
)
# of a mutant, well below the limit that follows
MOST_TESTS = 60
MOST_SECONDS = 60.0
BROKEN = 97  # the exit code of a child that has not got to pytest's
LIMIT = 180  # seconds of processor time for one mutant: a loop that does not end is noticed too
SWAPS: dict[type[ast.AST], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.Pow: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.And: "or",
    ast.Or: "and",
}
NAMES = {
    "min": "max",
    "max": "min",
    "amin": "amax",
    "amax": "amin",
    "minimum": "maximum",
    "maximum": "minimum",
    "fmin": "fmax",
    "fmax": "fmin",
    "exp": "log",
    "log": "exp",
    "sqrt": "square",
    "square": "sqrt",
    "any": "all",
    "all": "any",
    "cumsum": "cummax",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "to_dual": "to_primal",
    "to_primal": "to_dual",
    "add": "sub",
    "sub": "add",
    "mul": "div",
    "div": "mul",
}


@dataclass(frozen=True)
class Mutant:
    """A change of one place: between two offsets of a file, what is there, and what is there
    instead.
    """

    file: str
    line: int
    start: int
    end: int
    was: str
    becomes: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}: {self.was} → {self.becomes} @{self.start}"

    def applied(self, text: str) -> str:
        """Return the file with the change."""
        raw = text.encode()
        assert raw[self.start : self.end].decode() == self.was
        return (raw[: self.start] + self.becomes.encode() + raw[self.end :]).decode()


def mutants(path: Path) -> list[Mutant]:
    """Return all changes of a file, in the order of their places."""
    text = path.read_text(encoding="utf-8")
    lines = [0]
    for line in text.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    file = str(path.relative_to(SOURCE.parent))
    raw = text.encode()

    def place(node: Any) -> tuple[int, int]:
        return lines[node.lineno - 1] + node.col_offset, lines[
            node.end_lineno - 1
        ] + node.end_col_offset

    found: dict[tuple[int, int, str], Mutant] = {}

    def add(start: int, end: int, becomes: str, line: int) -> None:
        was = raw[start:end].decode()
        if was != becomes and was.strip():
            found[(start, end, becomes)] = Mutant(file, line, start, end, was, becomes)

    def between(left: Any, right: Any, becomes: str) -> None:
        """Replace the operator between two operands, which is all that is there besides
        brackets.
        """
        start = place(left)[1]
        end = place(right)[0]
        inside = raw[start:end].decode()
        stripped = inside.strip(" ()\n")
        if stripped and "#" not in inside:
            at = start + len(inside[: inside.index(stripped)].encode())
            add(at, at + len(stripped.encode()), becomes, left.end_lineno)

    for node in _code(ast.parse(text)):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in SWAPS:
                between(left, right, SWAPS[type(op)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
                between(left, right, SWAPS[type(op)])
            case ast.BoolOp(op=op, values=[first, second, *_]):
                between(first, second, SWAPS[type(op)])
            case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand) if not isinstance(
                operand, ast.Constant
            ):
                add(place(node)[0], place(operand)[0], "", node.lineno)
            case ast.Constant(value=bool() as value):
                add(*place(node), str(not value), node.lineno)
            case ast.Constant(value=int() | float() as number):
                add(
                    *place(node),
                    repr(number + 1 if isinstance(number, int) else 2 * number or 1.0),
                    node.lineno,
                )
            case ast.IfExp(test=test, body=body, orelse=other):
                one, two = (raw[slice(*place(each))].decode() for each in (body, other))
                condition = raw[slice(*place(test))].decode()
                add(*place(node), f"({two}) if ({condition}) else ({one})", node.lineno)
            case ast.AugAssign(target=target, op=op, value=value) if type(op) in SWAPS:
                between(target, value, f"{SWAPS[type(op)]}=")
            case ast.Attribute(attr=attr) if attr in NAMES:
                add(
                    place(node)[1] - len(attr),
                    place(node)[1],
                    NAMES[attr],
                    node.end_lineno or node.lineno,
                )
            case ast.Call(func=ast.Name(id=name) as called) if name in NAMES:
                add(*place(called), NAMES[name], node.lineno)
            case ast.If(test=test):
                condition = raw[slice(*place(test))].decode()
                add(*place(test), f"not ({condition})", test.lineno)
            case ast.Return(value=ast.expr() as value):
                add(*place(value), "None", value.lineno)
    return [found[key] for key in sorted(found)]


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk over what is computed: not over types, messages of errors and descriptions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.arg | ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        yield node
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield node.value
                yield from _code(node.value)
            continue
        if isinstance(node, ast.FunctionDef):
            for part in (
                *node.args.defaults,
                *(d for d in node.args.kw_defaults if d is not None),
                *node.body,
            ):
                yield part
                yield from _code(part)
            continue
        yield from _code(node)


def sample(count: int, seed: int) -> list[Mutant]:
    """Draw so many of all changes, always the same ones first."""
    places = [SOURCE / part for part in MUTATED]
    files = [
        path
        for place in places
        for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
    ]
    every = [mutant for path in files for mutant in mutants(path)]
    Random(seed).shuffle(every)
    return every[:count]


def cover(folder: Path) -> None:
    """Run the tests once under coverage, and note which of them reach which lines, and how long
    each takes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "coveragerc"
    settings.write_text(
        f"[run]\ndynamic_context = test_function\nsource = {SOURCE}\ndata_file = "
        f"{folder}/coverage\n"
    )
    plugin = folder / "mutants_contexts.py"
    plugin.write_text(CONTEXTS)
    environment = os.environ | {
        "PYTHONPATH": f"{folder}:{ROOT / 'src'}:{ROOT}",
        "MUTANTS_FOLDER": str(folder),
    }
    command = ["-m", "pytest", "-p", "mutants_contexts", "-p", "no:cacheprovider", "-q", *TESTS]
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=False)


CONTEXTS = """
import json, os, coverage, pytest
folder = os.environ["MUTANTS_FOLDER"]
cov = coverage.Coverage(config_file=f"{folder}/coveragerc")
cov.config.dynamic_context = None
seconds = {}

def pytest_sessionstart(session):
    cov.start()

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    cov.switch_context(item.nodeid)
    yield
    cov.switch_context("")

def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        seconds[report.nodeid] = report.duration

def pytest_sessionfinish(session):
    cov.stop()
    data = cov.get_data()
    lines = {}
    for file in data.measured_files():
        contexts = data.contexts_by_lineno(file)
        name = file.split("/src/")[-1]
        lines[name] = {
            str(line): [c for c in found if c in seconds] for line, found in contexts.items()
        }
    with open(f"{folder}/reached.json", "w") as out:
        json.dump({"seconds": seconds, "lines": lines}, out)
"""


def tests_of(mutant: Mutant, reached: dict[str, Any]) -> list[str]:
    """Return tests that reach the line, or a neighbour of a statement over several lines, the
    fastest first.

    Of lines that only run when the module is imported, such as attributes of a class: tests that
    reach the module. Where there are too many, of every test function its fastest case, then the
    second, and so on: cases of one function are much alike, and hundreds of them would leave no
    place for others.
    """
    lines = reached["lines"].get(mutant.file, {})
    seconds = reached["seconds"]
    near = next(
        (line for line in (mutant.line + by for by in (0, -1, 1, -2, 2)) if lines.get(str(line))),
        None,
    )
    found = set(lines.get(str(near), ())) or {test for tests in lines.values() for test in tests}
    earlier: Counter[str] = Counter()
    turns: list[tuple[int, float, str]] = []
    for test in sorted(found, key=lambda t: (seconds[t], t)):
        function = test.split("[")[0]
        turns.append((earlier[function], seconds[test], test))
        earlier[function] += 1
    chosen: list[str] = []
    left = MOST_SECONDS
    for _, took, test in sorted(turns):
        if took <= min(SLOWEST, left) and len(chosen) < MOST_TESTS:
            chosen.append(test)
            left -= took
    return sorted(chosen, key=lambda t: seconds[t])


def attempt(mutant: Mutant, tests: list[str], copy: Path) -> str:
    """Run the tests against a copy of the sources with the change, in a forked process; return the
    outcome.
    """
    if not tests:
        return "not reached"
    target = copy / mutant.file
    log = copy.parent / "last.log"
    original = (SOURCE.parent / mutant.file).read_text(encoding="utf-8")
    target.write_text(mutant.applied(original), encoding="utf-8")
    try:
        child = os.fork()
        if child == 0:
            _test(tests, copy, log)
        return _wait(child)
    finally:
        target.write_text(original, encoding="utf-8")


def _test(tests: list[str], copy: Path, log: Path) -> None:
    """Run pytest in this process and end it; exit codes are those of pytest."""
    import resource

    code = BROKEN
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 5))
        with log.open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        os.chdir(ROOT)
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(copy), str(ROOT)]
        os.environ["PYTHONPATH"] = f"{copy}:{ROOT}"
        import pytest

        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]))
    finally:
        os._exit(code)


def _wait(child: int) -> str:
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return (
            "killed: too long"
            if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
            else "killed: crashed"
        )
    code = os.WEXITSTATUS(status)
    if code == BROKEN:
        raise RuntimeError("the tests could not be run at all: see last.log")
    return {0: "survived", 1: "killed", 2: "killed", 5: "not reached"}.get(
        code, f"killed: exit {code}"
    )


def run(
    count: int, seed: int, folder: Path, minutes: float, turn: int = 0, processes: int = 1
) -> None:
    """Try a sample, or every so-manieth of it; go on where an earlier run has ended, and write the
    page in the end.
    """
    # Before forking, so that no child has to import them, nor to compile kernels.
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import scipy.optimize  # noqa: F401
    import torch

    os.environ |= {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "MIRRORDESCENT_TEST_KERNELS": str(folder / "kernels"),
    }
    torch.set_num_threads(1)
    reached = json.loads((folder / "reached.json").read_text())
    record = folder / f"outcomes-{seed}-{turn}.json"
    outcomes: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    copy = folder / f"copy-{turn}" / "src"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(SOURCE.parent, copy)
    until = time.monotonic() + 60 * minutes
    for mutant in sample(count, seed)[turn::processes]:
        if outcomes.get(mutant.name, "not reached") != "not reached":
            continue
        if time.monotonic() > until:
            break
        outcomes[mutant.name] = attempt(mutant, tests_of(mutant, reached), copy)
        record.write_text(json.dumps(outcomes, indent=1, ensure_ascii=False))
        print(len(outcomes), outcomes[mutant.name], mutant.name, flush=True)
    write(gathered(folder, seed), count, seed)


def gathered(folder: Path, seed: int) -> dict[str, str]:
    """Return the outcomes so far, of all processes."""
    records = [
        json.loads(path.read_text()) for path in sorted(folder.glob(f"outcomes-{seed}-*.json"))
    ]
    return {name: outcome for record in records for name, outcome in record.items()}


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval of a share.

    >>> [round(end, 3) for end in wilson(90, 100)]
    [0.826, 0.945]
    """
    share = successes / trials
    spread = z**2 / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return centre - half, centre + half


def write(outcomes: dict[str, str], count: int, seed: int, of: str | None = None) -> None:
    """Write the page: the score with its interval, by parts of the library, and what survived."""
    from mirrordescent_experiments.provenance import commit, machine, mark

    killed = {name for name, outcome in outcomes.items() if outcome.startswith("killed")}
    parts = sorted(Counter(map(_part, outcomes)).items())
    low, high = wilson(len(killed), len(outcomes))
    lines = [
        "# Mutants",
        "",
        "Written by `python -m campaigns.mutants`. Each mutant is one small change of the "
        "mathematics: an operator, a "
        "number, a condition, a function. It is killed if a test of the package that reaches its "
        "line fails, or does "
        "not end.",
        "",
        f"**Score: {len(killed)} of {len(outcomes)}, {100 * len(killed) / len(outcomes):.1f} %** "
        "(95 % interval by "
        f"Wilson: {100 * low:.1f} to {100 * high:.1f} %). These are {len(outcomes)} of a random "
        f"sample of {count}, "
        f"seed {seed}; tests that were written for survivors since then do not count.",
        "",
        "| part | killed | of |",
        "|---|---|---|",
        *(
            f"| {part} | {sum(_part(name) == part for name in killed)} | {tried} |"
            for part, tried in parts
        ),
        "",
        "## Survivors",
        "",
        *(
            f"- `{_words(name)}` ({outcome})"
            for name, outcome in sorted(outcomes.items())
            if name not in killed
        ),
        "",
        mark(
            {
                "commit": of or commit(),
                "date": _today(),
                "seeds": str(seed),
                "machine": machine(),
                "entries": {},
            }
        ),
    ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    stored = json.dumps({"seed": seed, "outcomes": outcomes}, indent=1, ensure_ascii=False)
    PAGE.with_suffix(".json").write_text(stored + "\n", encoding="utf-8")


def _part(name: str) -> str:
    return name.split("/")[1].split(".py")[0]


def _words(name: str) -> str:
    return " ".join(name.split(" @")[0].split())[:200]


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def main() -> None:
    """Cover, list or run."""
    parser = argparse.ArgumentParser(
        prog="campaigns.mutants", description="Do the tests notice small changes?"
    )
    parser.add_argument("what", choices=["cover", "list", "run", "page"])
    parser.add_argument("--count", type=int, default=420)
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--processes", type=int, default=1, help="that share the sample")
    parser.add_argument("--turn", type=int, default=0, help="of this process, from 0")
    parser.add_argument(
        "--commit",
        help="of the sources that were changed, if it is not the one that is checked out",
    )
    parser.add_argument("--folder", type=Path, default=Path("/tmp/mutants"))
    chosen = parser.parse_args()
    if chosen.what == "cover":
        cover(chosen.folder)
    elif chosen.what == "list":
        listed = [asdict(mutant) for mutant in sample(chosen.count, chosen.seed)]
        print(json.dumps(listed, indent=1, ensure_ascii=False))
    elif chosen.what == "page":
        write(gathered(chosen.folder, chosen.seed), chosen.count, chosen.seed, chosen.commit)
    else:
        run(chosen.count, chosen.seed, chosen.folder, chosen.minutes, chosen.turn, chosen.processes)


if __name__ == "__main__":
    main()
