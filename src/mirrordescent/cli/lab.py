"""Commands that need the repository: what they run is not in the installed package."""

from importlib import import_module
from types import ModuleType

PACKAGE = "mirrordescent_lab"


def lab(module: str) -> ModuleType:
    """Return a module of ``mirrordescent_lab``, or say where to get that package."""
    try:
        import_module(PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:  # the package is there, and something that it needs is not
            raise
        raise ImportError(
            f"{PACKAGE}.{module} is in the repository of mirrordescent and not in the installed package: clone the "
            "repository, and there run `make demo`, or `pip install -e .` and this command again"
        ) from error
    return import_module(f"{PACKAGE}.{module}")
