"""Fine-tuning: a run that begins with the weights of another network (``init_from``).

The weights are those of a run folder, of a checkpoint of ours, or of a public file. All of them must fit but the last
layer: one of other classes, or of another kind, stays as the run draws it. What a head counts (the steps of an
annealing margin), the optimizer and the schedules begin anew; a weight average begins at the loaded weights.

The file is read once, when the run begins, and the run writes its first checkpoint before its first step. So a resumed
run goes on with the same bits whatever has become of the file, and no run mixes two of them. Checkpoints say which
bytes it was, among the versions.
"""

from pathlib import Path

from widemargin.config.checkpoint import read_checksum
from widemargin.config.run import RunConfig
from widemargin.core.files import check_file
from widemargin.core.records import digest_of_file
from widemargin.errors import InputError
from widemargin.evaluation.target import is_public, load_target
from widemargin.models.public_weights import load_public_state_dict, read_tensors
from widemargin.training.state import TrainState
from widemargin.types import AfterAverage

_ANY_SIZE = 2**62


def load_initial_weights(state: TrainState, config: RunConfig) -> None:
    """Put the weights that ``config.init_from`` names into the model and its average, and note in the state which.

    Refused is a run that would freeze the statistics of a fresh network, which has seen no image.
    """
    if config.init_from is None and config.freeze_batch_norm:
        raise InputError(
            "freeze_batch_norm keeps the statistics of a trained network, and this run begins with a fresh one: say "
            "where from (--from WEIGHTS, or init_from), or remove it"
        )
    if config.init_from is None:
        return
    path = Path(config.init_from)
    check_file(path)
    if is_public(path):
        weights, digest = read_tensors(path), f"sha256:{digest_of_file(path, _ANY_SIZE)}"
    else:
        target = load_target(path)
        _check_normalization(target.path, target.description.run_config(), config)
        path, weights = target.path, target.model.state_dict()
        digest = read_checksum(path) or f"sha256:{digest_of_file(path, _ANY_SIZE)}"
    model = state.nets.model
    try:
        replaced = load_public_state_dict(model, weights, new_head=True)
    except InputError as error:
        raise InputError(f"init_from: {path}: {error}") from None
    for module in model.modules():
        if isinstance(module, AfterAverage):  # public files hold rows that left their sphere
            module.after_average()
    if state.average is not None:
        state.average.load_state_dict(model.state_dict())
    state.initial_weights = f"{path.name}, {digest}" + (f", but a new last layer: {replaced}" if replaced else "")


def _check_normalization(path: Path, theirs: RunConfig, ours: RunConfig) -> None:
    """Refuse weights that were trained behind another normalization; weights of public files are checked likewise."""
    trained, wanted = (getattr(config.model, "normalize", None) for config in (theirs, ours))
    if trained != wanted:
        remedy = "none" if trained is None else f"{{mean={[*trained.mean]}, std={[*trained.std]}}}"
        raise InputError(
            f"init_from: {path} was trained behind another normalization than model.normalize ({trained} there, "
            f"{wanted} here); take the same: --set 'model.normalize={remedy}'"
        )
