"""Mutation testing: does a test fail for each small change of the library's mathematics?

Mutants are drawn with a seed, the tests of a mutant are those that reach its line, and a run can be
continued after an interruption. mutmut runs all mutants of a tree, and cosmic-ray rewrites the
working tree in place; neither supports a seeded sample with chosen tests.

    python -m campaigns.mutants cover              record which tests reach which lines
    python -m campaigns.mutants run --count 420    try mutants, or continue; write the page

Both take ``--parts problems,references,optim,restore,kernels``. For the part ``kernels``, the
sources in C are changed.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mirrordescent"
KERNEL_TESTS = (
    "tests/test_moment_kernels.py",
    "tests/mirrors/test_matrix_kernels.py",
    "tests/mirrors/test_power_kernels.py",
    "tests/methods/test_kernels.py",
    "tests/problems/test_holes.py",
    "tests/problems/test_features.py",
    "tests/problems/test_ridge_kernels.py",
    "tests/optim/test_compiled.py",
)
PARTS: dict[str, tuple[str, ...]] = {
    "methods": (
        "tests/methods",
        "tests/solving",
        "tests/test_one_file.py",
        "tests/test_conditioning.py",
        "tests/optim/test_equal_to_methods.py",
        "tests/optim/test_preconditioned.py",
    ),
    "theory": ("tests/theory", "tests/test_storage.py"),
    "references": ("tests/references",),
    "schedules.py": ("tests/test_schedules.py",),
    "oracles.py": ("tests/test_oracles.py",),
    "problems": ("tests/problems",),
    "optim": ("tests/optim",),
    "restore": ("tests/restore",),
    "kernels": KERNEL_TESTS,
}
"""Tests of each part of the library that can be mutated."""

DEFAULT_PARTS = ("methods", "theory", "references", "schedules.py", "oracles.py")
PAGE = ROOT / "docs" / "results" / "mutants.md"
MAX_TEST_SECONDS = 40.0
"""Duration above which a test is not run; faster tests reach the same lines."""

MOST_TESTS = 60
"""Largest number of tests of a mutant in Python."""

MOST_KERNEL_TESTS = 800
"""Largest number of tests of a mutant in C. Tests of kernels are fast, and each has many shapes."""

MOST_SECONDS = 60.0
"""Largest total duration of the tests of a mutant."""

CPU_LIMIT = 180
"""Processor seconds of a mutant; a mutant that exceeds them is killed."""

C_SUFFIXES = (".c", ".h")

NOT_RUN = 97
"""Exit code of a child that could not start pytest."""

NOT_COMPILED = 98
"""Exit code of a child whose kernels cannot be compiled."""

OPERATORS: dict[type[ast.AST], str] = {
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
FUNCTIONS = {
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
    """A change of one place of a file.

    Attributes:
        file: Path of the file, relative to the source folder.
        line: Line of the change.
        start: Byte at which the replaced text begins.
        end: Byte at which it ends.
        was: Replaced text.
        becomes: New text.
    """

    file: str
    line: int
    start: int
    end: int
    was: str
    becomes: str

    @property
    def name(self) -> str:
        """A name that is unique among all mutants."""
        return f"{self.file}:{self.line}: {self.was} → {self.becomes} @{self.start}"

    def applied(self, text: str) -> str:
        """Return the text of the file with the change."""
        raw = text.encode()
        assert raw[self.start : self.end].decode() == self.was
        return (raw[: self.start] + self.becomes.encode() + raw[self.end :]).decode()


class _MutantFinder:
    """Finds all mutants of a file.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.file = str(path.relative_to(SOURCE.parent))
        self.tree = ast.parse(text)
        self.raw = text.encode()
        self.line_starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.line_starts.append(self.line_starts[-1] + len(line))
        self.mutants: dict[tuple[int, int, str], Mutant] = {}

    def find(self) -> list[Mutant]:
        """Return the mutants in the order of their places."""
        for node in _computing_nodes(self.tree):
            self._visit(node)
        return [self.mutants[key] for key in sorted(self.mutants)]

    def _span(self, node: Any) -> tuple[int, int]:
        """Return the first byte of a node, and the byte after its last."""
        start = self.line_starts[node.lineno - 1] + node.col_offset
        end = self.line_starts[node.end_lineno - 1] + node.end_col_offset
        return start, end

    def _source(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.raw[start:end].decode()

    def _add(self, start: int, end: int, becomes: str, line: int) -> None:
        was = self.raw[start:end].decode()
        if was != becomes and was.strip():
            key = (start, end, becomes)
            self.mutants[key] = Mutant(self.file, line, start, end, was, becomes)

    def _replace(self, node: Any, becomes: str) -> None:
        self._add(*self._span(node), becomes, node.lineno)

    def _replace_operator(self, left: Any, right: Any, becomes: str) -> None:
        """Replace the operator between two operands; only brackets may be there besides."""
        start = self._span(left)[1]
        end = self._span(right)[0]
        between = self.raw[start:end].decode()
        operator = between.strip(" ()\n")
        if operator and "#" not in between:
            at = start + len(between[: between.index(operator)].encode())
            self._add(at, at + len(operator.encode()), becomes, left.end_lineno)

    def _visit(self, node: ast.AST) -> None:
        """Add the mutants of one node."""
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
                self._replace_operator(left, right, OPERATORS[type(op)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                self._replace_operator(left, right, OPERATORS[type(op)])
            case ast.BoolOp(op=op, values=[first, second, *_]):
                self._replace_operator(first, second, OPERATORS[type(op)])
            case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
                if not isinstance(operand, ast.Constant):
                    self._add(self._span(node)[0], self._span(operand)[0], "", node.lineno)
            case ast.Constant(value=bool() as value):
                self._replace(node, str(not value))
            case ast.Constant(value=int() as number):
                self._replace(node, repr(number + 1))
            case ast.Constant(value=float() as number):
                self._replace(node, repr(2 * number or 1.0))
            case ast.IfExp(test=test, body=body, orelse=other):
                condition = self._source(test)
                swapped = f"({self._source(other)}) if ({condition}) else ({self._source(body)})"
                self._replace(node, swapped)
            case ast.AugAssign(target=target, op=op, value=value) if type(op) in OPERATORS:
                self._replace_operator(target, value, f"{OPERATORS[type(op)]}=")
            case ast.Attribute(attr=attr) if attr in FUNCTIONS:
                end = self._span(node)[1]
                line = node.end_lineno or node.lineno
                self._add(end - len(attr), end, FUNCTIONS[attr], line)
            case ast.Call(func=ast.Name(id=name) as called) if name in FUNCTIONS:
                self._add(*self._span(called), FUNCTIONS[name], node.lineno)
            case ast.If(test=test):
                self._replace(test, f"not ({self._source(test)})")
            case ast.Return(value=ast.expr() as value):
                self._replace(value, "None")


def _computing_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes that compute something: no annotations, error messages and descriptions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.arg | ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        yield node
        if isinstance(node, ast.AnnAssign):
            children = [] if node.value is None else [node.value]
        elif isinstance(node, ast.FunctionDef):
            keyword_defaults = [value for value in node.args.kw_defaults if value is not None]
            children = [*node.args.defaults, *keyword_defaults, *node.body]
        else:
            yield from _computing_nodes(node)
            continue
        for child in children:
            yield child
            yield from _computing_nodes(child)


C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|^[ \t]*#[^\n]*", re.DOTALL | re.MULTILINE)
C_ASSIGNMENT = re.compile(r"(?<=\n)[ \t]*[\w\[\]\->.*+ ]+? [-+*/]?= [^;{}\n]*;[ \t]*(?=\n)")
C_TOKEN = re.compile(
    r"(?<= )(?:<=|>=|==|!=|&&|\|\||[-+*/]=|[-+*/<>])(?= )|(?<![\w.])\d+(?:\.\d+)?(?![\w.])"
)
C_OPERATORS = {
    "<=": "<",
    ">=": ">",
    "<": "<=",
    ">": ">=",
    "==": "!=",
    "!=": "==",
    "&&": "||",
    "||": "&&",
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "+=": "-=",
    "-=": "+=",
    "*=": "/=",
    "/=": "*=",
}


def c_mutants(path: Path) -> list[Mutant]:
    """Return all mutants of a file in C: other operators and numbers, and left out assignments."""
    raw = path.read_text(encoding="utf-8")
    # Comments and directives become blanks, so that places stay the same.
    code = C_COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), raw)
    file = str(path.relative_to(SOURCE.parent))
    found: list[Mutant] = []
    for pattern in (C_TOKEN, C_ASSIGNMENT):
        for match in pattern.finditer(code):
            was = raw[match.start() : match.end()]
            if pattern is C_ASSIGNMENT:
                if re.match(r"\s*(const|static|REAL|double|long|int|unsigned|float)\b", was):
                    continue  # a declaration
                if was.count("(") != was.count(")"):
                    continue  # a part of a statement
                becomes = ";"
            elif was in C_OPERATORS:
                becomes = C_OPERATORS[was]
            else:
                becomes = f"{2 * float(was) or 1.0}" if "." in was else str(int(was) + 1)
            start = len(raw[: match.start()].encode())
            line = raw.count("\n", 0, match.start()) + 1
            found.append(Mutant(file, line, start, start + len(was.encode()), was, becomes))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end))


def mutants(path: Path) -> list[Mutant]:
    """Return all mutants of a file, in the order of their places."""
    return c_mutants(path) if path.suffix in C_SUFFIXES else _MutantFinder(path).find()


def sample(count: int, seed: int, parts: Sequence[str] = DEFAULT_PARTS) -> list[Mutant]:
    """Draw mutants of the library at random; a larger sample begins with a smaller one."""
    drawn: list[Mutant] = []
    for part in parts:
        path = SOURCE / part
        files = [path]
        if part == "kernels":
            files = sorted(each for each in path.rglob("*") if each.suffix in C_SUFFIXES)
        elif path.is_dir():
            files = sorted(path.rglob("*.py"))
        for file in files:
            drawn += mutants(file)
    Random(seed).shuffle(drawn)
    return drawn[:count]


def cover(folder: Path, parts: Sequence[str] = DEFAULT_PARTS) -> None:
    """Run the tests once under coverage; record the lines that each reaches, and its duration.

    Args:
        folder: Folder for the record.
        parts: Parts whose tests are run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "coveragerc"
    settings.write_text(
        "[run]\ndynamic_context = test_function\n"
        f"source = {SOURCE}\ndata_file = {folder}/coverage\n"
    )
    plugin = folder / "mutants_contexts.py"
    plugin.write_text(COVERAGE_PLUGIN)
    environment = os.environ | {
        "PYTHONPATH": f"{folder}:{ROOT / 'src'}:{ROOT / 'experiments' / 'src'}:{ROOT}",
        "MUTANTS_FOLDER": str(folder),
    }
    command = ["-m", "pytest", "-p", "mutants_contexts", "-p", "no:cacheprovider", "-q"]
    tests = dict.fromkeys(test for part in parts for test in PARTS[part])
    command += tests
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=False)


COVERAGE_PLUGIN = """
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
        lines[name] = {}
        for line, tests in contexts.items():
            lines[name][str(line)] = [test for test in tests if test in seconds]
    with open(f"{folder}/reached.json", "w") as out:
        json.dump({"seconds": seconds, "lines": lines}, out)
"""


def tests_of(mutant: Mutant, reached: dict[str, Any]) -> list[str]:
    """Return the tests to run for a mutant, the fastest first.

    These are tests that reach its line, or a neighbouring line, because coverage counts a statement
    over several lines only once. If none does, the line is run on import, and all tests that reach
    the module count. For a mutant in C, all tests of kernels count.

    If there are too many, the fastest case of every test function comes first, then the second
    fastest, and so on. Cases of one function are similar, and hundreds of them would displace other
    tests.

    Args:
        mutant: Mutant to test.
        reached: Record of :func:`cover`.
    """
    seconds = reached["seconds"]
    most_tests = MOST_TESTS
    if mutant.file.endswith(C_SUFFIXES):
        most_tests = MOST_KERNEL_TESTS
        tests = {test for test in seconds if test.startswith(KERNEL_TESTS)}
    else:
        tests = _reaching_tests(mutant, reached["lines"].get(mutant.file, {}))
    cases: Counter[str] = Counter()
    ranked: list[tuple[int, float, str]] = []
    for test in sorted(tests, key=lambda test: (seconds[test], test)):
        function = test.split("[")[0]
        ranked.append((cases[function], seconds[test], test))
        cases[function] += 1
    chosen: list[str] = []
    seconds_left = MOST_SECONDS
    for _, duration, test in sorted(ranked):
        if duration <= min(MAX_TEST_SECONDS, seconds_left) and len(chosen) < most_tests:
            chosen.append(test)
            seconds_left -= duration
    return sorted(chosen, key=lambda test: seconds[test])


def _reaching_tests(mutant: Mutant, lines: dict[str, list[str]]) -> set[str]:
    """Return the tests that reach a mutant's line, a neighbouring line, or else its module."""
    for offset in (0, -1, 1, -2, 2):
        tests = lines.get(str(mutant.line + offset))
        if tests:
            return set(tests)
    return {test for tests in lines.values() for test in tests}


def attempt(mutant: Mutant, tests: list[str], copy: Path) -> str:
    """Run tests in a forked process against a copy of the sources with a mutant.

    Args:
        mutant: Mutant to test.
        tests: Tests to run.
        copy: Copy of the source folder.

    Returns:
        The outcome: "survived", "not reached", or "killed" with a reason.
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
            _run_tests(tests, copy, log)
        return _wait(child)
    finally:
        target.write_text(original, encoding="utf-8")


def _run_tests(tests: list[str], copy: Path, log: Path) -> None:
    """Run pytest in this process and end it with the exit code of pytest."""
    import resource

    code = NOT_RUN
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT + 5))
        with log.open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        os.chdir(ROOT)
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(copy), str(ROOT / "experiments" / "src"), str(ROOT)]
        os.environ["PYTHONPATH"] = f"{copy}:{ROOT / 'experiments' / 'src'}:{ROOT}"
        if any(test.startswith(KERNEL_TESTS) for test in tests):
            code = _compile_kernels(copy / "mirrordescent")
            if code:
                return
        import pytest

        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]))
    finally:
        os._exit(code)


def _compile_kernels(package: Path) -> int:
    """Compile the kernels, without which their tests are skipped; return 0 or NOT_COMPILED."""
    from building.compilation import CompilationError, compile_in_place, is_current

    try:
        if not is_current(package):
            compile_in_place(package, {"baseline": ("-march=native",)})
    except CompilationError:
        return NOT_COMPILED
    return 0


def _wait(child: int) -> str:
    """Wait for the tests of a mutant and return the outcome."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        timed_out = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return "killed: too long" if timed_out else "killed: crashed"
    code = os.WEXITSTATUS(status)
    if code == NOT_RUN:
        raise RuntimeError("the tests could not be run at all: see last.log")
    outcomes = {0: "survived", 1: "killed", 2: "killed", 5: "not reached"}
    outcomes[NOT_COMPILED] = "killed: not compiled"
    return outcomes.get(code, f"killed: exit {code}")


def run(
    count: int,
    seed: int,
    folder: Path,
    minutes: float,
    turn: int = 0,
    processes: int = 1,
    parts: Sequence[str] = DEFAULT_PARTS,
) -> None:
    """Try a sample of mutants, continue an earlier run, and write the page in the end.

    Args:
        count: Number of mutants in the sample.
        seed: Seed of the sample.
        folder: Folder with the record of :func:`cover` and for outcomes.
        minutes: Time after which no new mutant is tried.
        turn: Number of this process, from 0.
        processes: Number of processes that share the sample.
        parts: Parts of the library that are mutated.
    """
    # Import these before forking, so that no child has to.
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import scipy.optimize  # noqa: F401
    import torch

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    torch.set_num_threads(1)
    reached = json.loads((folder / "reached.json").read_text())
    record = folder / f"outcomes-{seed}-{turn}.json"
    outcomes: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    copy = folder / f"copy-{turn}" / "src"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(SOURCE.parent, copy)
    deadline = time.monotonic() + 60 * minutes
    for mutant in sample(count, seed, parts)[turn::processes]:
        if outcomes.get(mutant.name, "not reached") != "not reached":
            continue
        if time.monotonic() > deadline:
            break
        outcomes[mutant.name] = attempt(mutant, tests_of(mutant, reached), copy)
        record.write_text(json.dumps(outcomes, indent=1, ensure_ascii=False))
        print(len(outcomes), outcomes[mutant.name], mutant.name, flush=True)
    write(gathered(folder, seed), count, seed)


def gathered(folder: Path, seed: int) -> dict[str, str]:
    """Return the outcomes of all processes so far."""
    outcomes: dict[str, str] = {}
    for path in sorted(folder.glob(f"outcomes-{seed}-*.json")):
        outcomes.update(json.loads(path.read_text()))
    return outcomes


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's confidence interval for a proportion.

    >>> [round(end, 3) for end in wilson(90, 100)]
    [0.826, 0.945]
    """
    share = successes / trials
    spread = z**2 / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return centre - half, centre + half


def write(outcomes: dict[str, str], count: int, seed: int, of: str | None = None) -> None:
    """Write the page with the score, its interval, the score of each part, and the survivors.

    Args:
        outcomes: Outcomes by the names of mutants.
        count: Number of mutants in the sample.
        seed: Seed of the sample.
        of: Commit of the sources; by default the one that is checked out.
    """
    from mirrordescent_experiments.provenance import code_of, commit, machine, mark

    killed = {name for name, outcome in outcomes.items() if outcome.startswith("killed")}
    tried = len(outcomes)
    low, high = wilson(len(killed), tried)
    lines = [
        "# Mutants",
        "",
        "Written by `python -m campaigns.mutants`. Each mutant is one small change of the "
        "mathematics: an operator, a number, a condition, a function. It is killed if a test of "
        "the package that reaches its line fails, or does not end.",
        "",
        f"**Score: {len(killed)} of {tried}, {100 * len(killed) / tried:.1f} %** (95 % interval by "
        f"Wilson: {100 * low:.1f} to {100 * high:.1f} %). These are {tried} of a random sample of "
        f"{count}, seed {seed}; tests that were written for survivors since then do not count.",
        "",
        "| part | killed | of |",
        "|---|---|---|",
    ]
    killed_parts = Counter(map(_part, killed))
    for part, total in sorted(Counter(map(_part, outcomes)).items()):
        lines.append(f"| {part} | {killed_parts[part]} | {total} |")
    lines += ["", "## Survivors", ""]
    for name, outcome in sorted(outcomes.items()):
        if name not in killed:
            lines.append(f"- `{_words(name)}` ({outcome})")
    provenance = {
        "commit": of or commit(),
        "date": _today(),
        "seeds": str(seed),
        "machine": machine(),
        "entries": {},
        "code": code_of("campaigns.mutants"),
    }
    lines += ["", mark(provenance)]
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
    """Record the coverage, list mutants, run them, or write the page."""
    parser = argparse.ArgumentParser(
        prog="campaigns.mutants", description="Do the tests notice small changes?"
    )
    parser.add_argument("action", choices=["cover", "list", "run", "page"])
    parser.add_argument("--count", type=int, default=420, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=15, help="seed of the sample")
    parser.add_argument("--minutes", type=float, default=600.0, help="duration")
    parser.add_argument("--processes", type=int, default=1, help="processes that share the sample")
    parser.add_argument("--turn", type=int, default=0, help="number of this process, from 0")
    parser.add_argument(
        "--parts",
        type=lambda text: text.split(","),
        default=list(DEFAULT_PARTS),
        help=f"parts of the library, of {', '.join(PARTS)}",
    )
    parser.add_argument("--commit", help="commit of the sources, if it is not checked out")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/mutants"), help="work folder")
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"--parts: there is no part {part!r}; there are {', '.join(PARTS)}")
    count = arguments.count
    seed = arguments.seed
    folder = arguments.folder
    if arguments.action == "cover":
        cover(folder, arguments.parts)
    elif arguments.action == "list":
        listed = [asdict(mutant) for mutant in sample(count, seed, arguments.parts)]
        print(json.dumps(listed, indent=1, ensure_ascii=False))
    elif arguments.action == "page":
        write(gathered(folder, seed), count, seed, arguments.commit)
    else:
        run(
            count,
            seed,
            folder,
            arguments.minutes,
            arguments.turn,
            arguments.processes,
            arguments.parts,
        )


if __name__ == "__main__":
    main()
