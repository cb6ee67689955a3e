"""Optional dependencies: an import that fails says which extra installs the package."""

from collections.abc import Iterator
from contextlib import contextmanager


class ExtraMissing(ImportError):
    """A package of an optional dependency is not installed."""


@contextmanager
def requires_extra(extra: str, purpose: str, package: str) -> Iterator[None]:
    """Import an optional dependency in this context.

    If a package is not installed, the error names the extra that installs it.

    Args:
        extra: Extra of this library, such as "pictures".
        purpose: Subject of the error message, such as "Reading photographs".
        package: Name of the package in the error message.

    Raises:
        ExtraMissing: A module is not installed.

    >>> with requires_extra("pictures", "Reading photographs", "Pillow"):
    ...     import no_such_module
    Traceback (most recent call last):
    ...
    mirrordescent._internal.extras.ExtraMissing: Reading photographs needs Pillow: \
pip install 'mirrordescent[pictures]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            f"{purpose} needs {package}: pip install 'mirrordescent[{extra}]'"
        ) from error
