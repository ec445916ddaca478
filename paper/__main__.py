"""``python -m paper``, in the repository's root: from finished jobs to ``results/``, its page and its figures."""

from widemargin.cli.main import CommandLine, Verb, main
from widemargin.core.signals import install_handlers

PAPER = CommandLine(
    "python -m paper",
    "From finished jobs of 'widemargin reproduce' to a small tree to commit, and the page and the figures made of it.",
    {
        "collect": Verb(
            "paper.commands",
            "collect",
            "Collect finished jobs (no weights; the same job again replaces it), then write the page and its figures.",
        ),
        "page": Verb("paper.commands", "page", "Write the page and its figures again, from what was collected."),
    },
)

if __name__ == "__main__":
    install_handlers()
    main(line=PAPER)
