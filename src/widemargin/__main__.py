"""``python -m widemargin``: the same as the command."""

from widemargin.cli.main import main

if __name__ == "__main__":
    main()
