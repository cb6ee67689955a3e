"""``python -m mirrordescent`` is the command line."""

from mirrordescent.cli import main

if __name__ == "__main__":
    main()
