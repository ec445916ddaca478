"""The command ``widemargin``, also as ``python -m widemargin``: hears Ctrl-C from the first moment on."""

import os

from widemargin.core.signals import install_handlers


def main() -> None:
    """Run the command line and exit."""
    install_handlers()
    if os.environ.pop("WIDEMARGIN_FOLLOWS_PARENT", ""):
        from widemargin.core.child_process import follow_parent

        follow_parent()
    from widemargin.cli.main import main as command  # which takes a while

    command()


if __name__ == "__main__":
    main()
