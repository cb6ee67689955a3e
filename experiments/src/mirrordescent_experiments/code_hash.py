"""A hash of the code that the numbers of a page depend on.

It covers the syntax trees, without docstrings and comments, of a module and of all modules that it
imports, directly or not, and the sources of the kernels if it can reach them. Formatting and
documentation do not change it; every other change does, even one that does not change the numbers.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path

import mirrordescent

SOURCES = Path(__file__).parents[3]
ROOTS = (Path(mirrordescent.__file__).parents[1], Path(__file__).parents[1], SOURCES)
PACKAGES = ("mirrordescent", "mirrordescent_experiments", "benchmarks", "campaigns", "examples")
KERNELS = "mirrordescent.kernels"
LENGTH = 16
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def code_hash(module: str, roots: Sequence[Path] = ROOTS) -> str:
    """Return the hash of a module and of everything that it imports from our packages.

    Args:
        module: Name of the module, such as ``mirrordescent_experiments.svm``.
        roots: Folders in which packages are looked for.

    Raises:
        ModuleNotFoundError: If there is no such module in the folders.

    >>> len(code_hash("mirrordescent_experiments.intervals"))
    16
    """
    return _hash(module, tuple(roots))


@lru_cache
def _hash(module: str, roots: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    found = dependencies(module, roots)
    for name, path in sorted(found.items()):
        digest.update(f"{name}\n{_normalised(path)}\n".encode())
    if KERNELS in found:
        folder = found[KERNELS].parent
        for path in sorted([*folder.rglob("*.c"), *folder.rglob("*.h")]):
            digest.update(f"{path.name}\n{_without_comments(path)}\n".encode())
    return digest.hexdigest()[:LENGTH]


def dependencies(module: str, roots: Sequence[Path] = ROOTS) -> dict[str, Path]:
    """Return the files of a module and of all modules of our packages that it imports, by name.

    Imports for type checkers alone do not count. Names that a package loads lazily are followed
    if they are used.
    """
    search = _Search(tuple(roots))
    if search.path(module) is None:
        raise ModuleNotFoundError(f"there is no module {module} in {', '.join(map(str, roots))}")
    search.add(module)
    return search.found


class _Search:
    """The modules found so far."""

    def __init__(self, roots: tuple[Path, ...]) -> None:
        self.roots = roots
        self.found: dict[str, Path] = {}

    def path(self, module: str) -> Path | None:
        """Return the file of a module of our packages, or None."""
        if module.split(".")[0] not in PACKAGES:
            return None
        return _find(module, self.roots)

    def add(self, module: str) -> None:
        """Add a module, the packages that contain it, and what all of them import."""
        waiting = [module]
        while waiting:
            name = waiting.pop()
            path = self.path(name)
            if path is None or name in self.found:
                continue
            self.found[name] = path
            waiting.append(name.rpartition(".")[0])
            for origin, attribute in _imports(path, name):
                waiting += [origin, *self._reached(origin, attribute)]

    def _reached(self, origin: str, attribute: str) -> list[str]:
        """Return the modules behind an attribute of a module: a submodule, or a lazy name."""
        path = self.path(origin)
        if path is None or not attribute:
            return []
        if self.path(f"{origin}.{attribute}") is not None:
            return [f"{origin}.{attribute}"]
        lazy = _lazy(path, origin).get(attribute)
        return [] if lazy is None else [lazy[0], *self._reached(*lazy)]


@cache
def _find(module: str, roots: tuple[Path, ...]) -> Path | None:
    relative = Path(*module.split("."))
    for root in roots:
        for path in (root / relative / "__init__.py", root / relative.with_suffix(".py")):
            if path.is_file():
                return path
    return None


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imports(path: Path, module: str) -> list[tuple[str, str]]:
    """Return the pairs (module, attribute) that a file uses; the attribute may be empty."""
    found: list[tuple[str, str]] = []
    aliases: dict[str, str] = {}
    for node in _runtime_nodes(_tree(path)):
        if isinstance(node, ast.Import):
            for name in node.names:
                found.append((name.name, ""))
                first = name.name.split(".")[0]
                aliases[name.asname or first] = name.name if name.asname else first
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, path, module)
            found += [(origin, name.name) for name in node.names]
    for node in ast.walk(_tree(path)):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        if node.value.id in aliases:
            found.append((aliases[node.value.id], node.attr))
    return found


@cache
def _lazy(path: Path, module: str) -> dict[str, tuple[str, str]]:
    """Return where the names come from that a file imports for type checkers only."""
    runtime = {id(node) for node in _runtime_nodes(_tree(path))}
    return {
        name.asname or name.name: (_origin(node, path, module), name.name)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom) and id(node) not in runtime
        for name in node.names
    }


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those of blocks ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield other
                yield from _runtime_nodes(other)
            continue
        yield node
        yield from _runtime_nodes(node)


def _origin(node: ast.ImportFrom, path: Path, module: str) -> str:
    """Return the absolute name of the module from which an import takes names."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    up = node.level - (path.name == "__init__.py")
    parent = parts[: len(parts) - up]
    return ".".join([*parent, *([node.module] if node.module else [])])


@cache
def _normalised(path: Path) -> str:
    """Return a file without docstrings, comments and formatting."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # a string on its own does nothing: a docstring, or the description of a constant
            kept = [each for each in body if not _is_text(each)]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(ast.fix_missing_locations(tree))


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _without_comments(path: Path) -> str:
    return " ".join(C_COMMENT.sub(" ", path.read_text(encoding="utf-8")).split())
