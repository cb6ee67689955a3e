"""``python -m mirrordescent`` is the command line, and so is ``mirrordescent``."""

import sys


def main() -> None:
    """Run the command line; an interruption is one line, also while what it needs is still being
    imported.
    """
    try:
        from mirrordescent._internal.interruption import stoppable

        with stoppable():
            from mirrordescent.cli import main as run

            run()
    except KeyboardInterrupt:
        print("mirrordescent: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
