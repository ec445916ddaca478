"""What an evaluation may be pointed at."""

import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from widemargin import InputError
from widemargin.data import ImageSet
from widemargin.errors import WidemarginWarning
from widemargin.evaluation import load_target


def holds(target, path):
    stored = load_file(path)
    return all(value.equal(stored[key]) for key, value in target.model.state_dict().items())


def test_a_run_folder_means_its_best_weights(run_folder):
    target = load_target(run_folder)
    assert target.path == run_folder / "best.safetensors"
    assert target.description.which == "best"
    assert holds(target, run_folder / "best.safetensors")
    assert not target.model.training


def test_a_run_folder_without_best_weights_means_the_last(plain_folder):
    target = load_target(plain_folder)
    assert target.path == plain_folder / "last.safetensors"
    assert target.description.which == "last"


def test_a_run_folder_that_lost_its_best_weights_means_the_last_and_says_so(run_folder, tmp_path):
    run = shutil.copytree(run_folder, tmp_path / "run")
    (run / "best.safetensors").unlink()
    with pytest.warns(WidemarginWarning, match=r"best.safetensors is missing; these are the run's last weights"):
        target = load_target(run)
    assert target.path == run / "last.safetensors"
    assert target.description.selection.endswith("; best.safetensors, chosen on held-out images, is missing")


@pytest.mark.parametrize("name", ["best.safetensors", "config.toml"])
def test_weights_of_another_run_than_the_folders_are_refused(run_folder, seed_1, tmp_path, name):
    run = shutil.copytree(run_folder, tmp_path / "run")
    shutil.copyfile(seed_1 / name, run / name)
    told = "best.safetensors is of another run than the config.toml of its folder (seed: "
    with pytest.raises(InputError, match=re.escape(told)):
        load_target(run)


def test_a_file_means_that_file(run_folder):
    target = load_target(run_folder / "last.safetensors")
    assert target.description.which == "last"
    assert holds(target, run_folder / "last.safetensors")


def test_a_path_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match=r"nowhere does not exist; give a run folder .* or a checkpoint file"):
        load_target(tmp_path / "nowhere")


def test_a_folder_without_checkpoints(tmp_path):
    with pytest.raises(InputError, match=r"holds no best.safetensors or last.safetensors; is it a run folder"):
        load_target(tmp_path)


def test_a_file_that_is_no_checkpoint(tmp_path):
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    with pytest.raises(InputError, match=r"notes.txt is not a readable checkpoint"):
        load_target(tmp_path / "notes.txt")


def test_weights_from_elsewhere(tmp_path):
    save_file({"a": torch.zeros(3)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="no widemargin description; it was not written by widemargin"):
        load_target(tmp_path / "a.safetensors")


def test_data_that_fit_the_model(run_folder, digits):
    load_target(run_folder).check_fits(digits)


@pytest.mark.parametrize(
    ("shape", "label", "classes"), [((1, 28, 28), 10, 11), ((3, 28, 28), 0, 10), ((1, 14, 14), 0, 2)]
)
def test_data_that_do_not(run_folder, shape, label, classes):
    data = ImageSet(torch.zeros(2, *shape), torch.tensor([0, label]), num_classes=classes, name="other")
    with pytest.raises(InputError, match=rf"other holds images .* of {classes} classes, but .*best.safetensors was"):
        load_target(run_folder).check_fits(data)
