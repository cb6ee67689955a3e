"""The command ``mirrordescent``, which is also ``python -m mirrordescent``."""

import sys
from collections.abc import Callable


def main() -> None:
    """Run the command line. Ctrl-C ends it with one line, even while modules are imported."""
    try:
        from mirrordescent._internal.interruption import interruptible

        with interruptible():
            _command_line()()
    except KeyboardInterrupt:
        print("mirrordescent: interrupted", file=sys.stderr)
        sys.exit(130)


def _command_line() -> Callable[[], None]:
    """Import the command line, which needs an extra of the package."""
    try:
        from mirrordescent.cli import main as run
    except ModuleNotFoundError as error:
        if error.name != "tyro":
            raise
        message = "the command line needs the package tyro: pip install 'mirrordescent[cli]'"
        print(f"mirrordescent: {message}", file=sys.stderr)
        sys.exit(2)
    return run


if __name__ == "__main__":
    main()
