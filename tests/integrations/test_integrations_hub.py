"""Push, load, evaluate: a network goes to a hub that is a folder of this test's, and comes back the same."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml

import widemargin
from widemargin import InputError
from widemargin.config.toml import read_toml
from widemargin.data import load
from widemargin.evaluation.target import load_target
from widemargin.training import train

huggingface_hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is in the extra hub")
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError  # noqa: E402


class FakeResponse:
    """What the library's errors ask of a response."""

    headers: dict[str, str] = {}  # noqa: RUF012
    status_code, request, url = 404, None, "https://hub.invalid"


class Hub:
    """Repositories as folders, with the calls of huggingface_hub that are used."""

    def __init__(self, place):
        self.place, self.made = place, []

    def HfApi(self):  # noqa: N802 - the library's name
        return self

    def create_repo(self, repo_id, *, private=None, exist_ok=False):
        assert exist_ok
        self.made.append((repo_id, private))
        (self.place / repo_id).mkdir(parents=True, exist_ok=True)
        return f"https://hub.invalid/{repo_id}"

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        self.message = commit_message
        shutil.copytree(folder_path, self.place / repo_id, dirs_exist_ok=True)

    def hf_hub_download(self, repo_id, filename, *, revision=None):
        if not (self.place / repo_id).is_dir() or revision not in (None, "main"):
            raise RepositoryNotFoundError("404", response=FakeResponse())
        if not (self.place / repo_id / filename).is_file():
            raise LocalEntryNotFoundError("nothing in the cache")
        return str(self.place / repo_id / filename)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    fake = Hub(tmp_path / "hub")
    for name in ("HfApi", "hf_hub_download"):
        monkeypatch.setattr(huggingface_hub, name, getattr(fake, name))
    return fake


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "st"
    return train(tiny(), out=out, device="cpu").folder


@pytest.fixture(scope="module")
def evaluation(run, tmp_path_factory):
    from widemargin.cli.main import run as give

    out = tmp_path_factory.mktemp("evaluations") / "st"
    line = ["evaluate", str(run), "--attacks", "clean,fgsm,pgd2", "--eps", "2/255,0.1", "--out", str(out)]
    assert give(line) == 0
    return out


def test_there_and_back(hub, run, evaluation, command):
    answer = command("push", run, "somebody/st-emr", "--evaluation", evaluation, "--private")
    assert answer.code == 0, answer.err
    assert 'next: widemargin.load("hf://somebody/st-emr")' in answer.out
    assert hub.made == [("somebody/st-emr", True)]
    assert "tiny/st: highest accuracy under" in hub.message
    place = hub.place / "somebody/st-emr"
    assert {path.name for path in place.iterdir()} == {"README.md", "config.toml", "model.safetensors"}
    assert read_toml(place / "config.toml") == read_toml(run / "config.toml")
    own, back = widemargin.load(run), widemargin.load("hf://somebody/st-emr")
    assert not back.training
    assert own.state_dict().keys() == back.state_dict().keys()
    assert all(torch.equal(value, back.state_dict()[key]) for key, value in own.state_dict().items())
    assert load_target(place / "model.safetensors").description == load_target(run).description
    from safetensors import safe_open

    with safe_open(place / "model.safetensors", framework="pt") as stream:
        assert set(stream.keys()) == set(own.state_dict())  # nothing that resuming needs
    found = command("evaluate", "hf://somebody/st-emr@main", "--attacks", "clean", "--json")
    assert found.code == 0, found.err
    assert json.loads(found.out)["target"] == "hf://somebody/st-emr@main"
    record = json.loads((evaluation / "report.json").read_text())
    assert json.loads(found.out)["accuracy"]["clean"] == record["accuracy"]["clean"]


def test_the_card_says_what_was_measured(hub, run, evaluation, command):
    command("push", run, "somebody/st-emr", "--evaluation", evaluation)
    card = (hub.place / "somebody/st-emr/README.md").read_text(encoding="utf-8")
    record = json.loads((evaluation / "report.json").read_text())
    _, header, text = card.split("---\n", 2)
    table = yaml.safe_load(header)
    assert (table["library_name"], table["pipeline_tag"]) == ("widemargin", "image-classification")
    ((result),) = table["model-index"][0]["results"]
    metrics = {metric["name"]: metric["value"] for metric in result["metrics"]}
    assert metrics["accuracy, clean"] == round(record["accuracy"]["clean"], 2)
    assert metrics["accuracy, pgd2@0.1 (linf eps 0.1)"] == round(record["accuracy"]["pgd2@0.1"], 2)
    parsed = huggingface_hub.ModelCard(card).data
    assert len(parsed.eval_results) == len(record["accuracy"])
    for name, value in record["accuracy"].items():
        low, high = record["intervals"][name]
        assert f"| {name} | {value:.2f} | {low:.2f} to {high:.2f} |" in text
    assert "linf eps 2/255 = 0.00784314, 0.1; step eps/4; seed 0" in text
    assert "effective margin (linf)" in text
    assert all(f"**alarm {alarm['name']}**" in text for alarm in record["alarms"])
    assert "Weights: highest accuracy under" in text
    assert (run / "config.toml").read_text().strip() in text
    assert str(run) not in card


def test_a_card_without_an_evaluation_says_so(hub, run, command):
    answer = command("push", run, "somebody/st-emr")
    assert "note: the card has no numbers" in answer.err
    card = (hub.place / "somebody/st-emr/README.md").read_text(encoding="utf-8")
    assert "Nobody has evaluated these weights under attack yet" in card
    assert "model-index" not in card


def test_no_path_of_this_machine_is_published(hub, run, tiny, tmp_path, command):
    """Neither where the first weights lay, nor the folder of the data, nor that of the images it was judged on."""
    private = tmp_path / "home" / "somebody"
    private.mkdir(parents=True)
    images = load("mnist-embedded", "test").first(60)
    arrays = {"images": images.images.numpy(), "labels": images.labels.numpy()}
    np.savez(
        private / "mine.npz",
        **{f"{split}_{key}": value for split in ("train", "test") for key, value in arrays.items()},
    )
    shutil.copytree(run, private / "first")
    settings = (f"data.name={private / 'mine.npz'}", f"init_from={private / 'first'}", "epochs=1")
    trained = train(tiny(*settings), out=private / "run", device="cpu").folder
    judged = private / "judged"
    assert command("evaluate", trained, "--attacks", "clean", "--out", judged).code == 0
    answer = command("push", trained, "somebody/mine", "--evaluation", judged)
    assert answer.code == 0, answer.err
    for name in ("mine.npz", "first"):
        assert f"note: {private / name} is a path of this machine; published is its last part, {name}" in answer.err
    place = hub.place / "somebody/mine"
    for path in place.iterdir():
        assert str(private).encode() not in path.read_bytes(), path.name
        assert b"mine.npz" in path.read_bytes(), path.name
    config = read_toml(place / "config.toml")
    assert (config.data.name, config.init_from) == ("mine.npz", "first")
    assert torch.equal(*(next(iter(widemargin.load(of).parameters())) for of in (trained, "hf://somebody/mine")))


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({"name": "tiny/st", "data": {"name": "mnist"}, "eps": "8/255"}, {}),
        ({"data": {"name": "folder/x.npz", "extra": ["a/b", "c"]}}, {"folder/x.npz": "x.npz", "a/b": "b"}),
        (
            {"model": {"name": "/home/me/net"}, "init_from": "C:\\me\\run\\"},
            {"/home/me/net": "net", "C:\\me\\run\\": "run"},
        ),
        ({"parts": [{"file": "~/x"}, {"file": "../y"}]}, {"~/x": "x", "../y": "y"}),
        ({"model": {"kind": "hf", "name": "owner/name"}}, {}),
    ],
)
def test_what_is_a_path(table, found):
    from widemargin.integrations.hub import local_paths

    assert local_paths(table) == found


def test_what_is_refused(hub, run, evaluation, refused, tiny, tmp_path, monkeypatch):
    assert "the repository must be OWNER/NAME, got 'st-emr'" in refused("push", run, "st-emr")
    assert "it holds no report.json" in refused("push", run, "a/b", "--evaluation", tmp_path)
    other = train(tiny("seed=1", "epochs=1"), out=tmp_path / "other", device="cpu").folder
    assert "it judged other weights" in refused("push", other, "a/b", "--evaluation", evaluation)
    assert hub.made == []

    def deny(*_, **__):
        raise HfHubHTTPError("401 Client Error:\nUnauthorized", response=FakeResponse())

    monkeypatch.setattr(hub, "create_repo", deny)
    assert "cannot push to a/b: 401 Client Error: Unauthorized" in refused("push", run, "a/b")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("hf://st-emr", "is no address of a model; write hf://owner/name"),
        ("hf://a/b/c", "is no address of a model"),
        ("hf://nobody/nothing", "there is no such repository"),
        ("hf://a/b@v9", "there is no such repository"),
        ("hf://empty/one", "it holds no model.safetensors"),
    ],
)
def test_addresses_that_lead_nowhere(address, says, hub):
    (hub.place / "a/b").mkdir(parents=True)
    (hub.place / "empty/one").mkdir(parents=True)
    with pytest.raises(InputError, match=says):
        widemargin.load(address)
