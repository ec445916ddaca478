"""Commands that are for one process: under torchrun every process would do all of their work, in the same folder."""

from widemargin.errors import InputError
from widemargin.evaluation.rendezvous import told


def check_alone(command: str, instead: str) -> None:
    """Refuse where torchrun started several processes; ``instead`` says what to do."""
    count = told("WORLD_SIZE", 1)
    if count != 1:
        raise InputError(
            f"{command} is for one process, and torchrun started {count} (WORLD_SIZE): start it without torchrun; "
            f"{instead}; under torchrun, train and evaluate share their work"
        )
