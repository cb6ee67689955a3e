"""Optional dependencies: import a package, or say which extra installs it."""

import importlib
from types import ModuleType


class ExtraMissing(ImportError):
    """A package of an optional dependency is not installed."""


def require_extra(module: str, extra: str, purpose: str, package: str | None = None) -> ModuleType:
    """Import a module of an optional dependency.

    Args:
        module: Name of the module, such as "PIL.Image".
        extra: Extra of this library that installs it, such as "pictures".
        purpose: Subject of the error message, such as "Reading photographs".
        package: Name of the package in the error message; the module's name by default.

    Raises:
        ExtraMissing: The module cannot be imported because its package is not installed.

    >>> require_extra("math", "pictures", "Counting").__name__
    'math'
    """
    top_level = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != top_level:
            raise
        raise ExtraMissing(
            f"{purpose} needs {package or top_level}: pip install 'mirrordescent[{extra}]'"
        ) from error
