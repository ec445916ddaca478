"""The exported file gives the model's logits in onnxruntime, for any number of images, or is not written."""

import pytest
import torch

import widemargin
from widemargin.training import train

onnx = pytest.importorskip("onnx", reason="onnx is in the extra of that name")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is in the extra onnx")
pytest.importorskip("onnxscript", reason="onnxscript is in the extra onnx")


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    return train(tiny("epochs=1"), out=tmp_path_factory.mktemp("runs") / "st", device="cpu").folder


def test_the_command(run, command, tmp_path):
    path = tmp_path / "new" / "model.onnx"
    answer = command("export", run, path)
    assert answer.code == 0, answer.err
    assert "images (1, 28, 28) to 10 logits; onnxruntime's differ by at most" in answer.out
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    model = widemargin.load(run)
    for size in (1, 3, 64):
        x = torch.rand(size, 1, 28, 28)
        (found,) = session.run(["logits"], {"images": x.numpy()})
        assert torch.allclose(torch.from_numpy(found), model(x), atol=1e-5)
    notes = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert notes["name"] == "tiny/st"
    assert notes["images"].startswith("in [0, 1]")
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    "settings",
    [
        ("model.kind=cnn",),
        ("model.kind=resnet18", "data.name=cifar10-embedded"),
        ("head.kind=hypersphere",),
    ],
    ids=lambda settings: settings[0],
)
def test_other_networks(settings, tiny, tmp_path):
    from widemargin.integrations.onnx import export_onnx
    from widemargin.models.classifier import build_model

    config = tiny(*(setting for setting in settings if not setting.startswith("data")))
    shape = (3, 32, 32) if len(settings) > 1 else (1, 28, 28)
    model = build_model(config.model, image_shape=shape, num_classes=10, seed=0, make_head=config.head)
    export_onnx(model, tmp_path / "model.onnx", image_shape=shape, notes={})
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    x = torch.rand(4, *shape)
    (found,) = session.run(None, {"images": x.numpy()})
    assert torch.allclose(torch.from_numpy(found), model.eval()(x), atol=1e-4)


def test_other_logits_are_not_written(run, refused, tmp_path, monkeypatch):
    usual = onnxruntime.InferenceSession

    class Wrong(usual):
        def run(self, *arguments):
            (found,) = super().run(*arguments)
            return [found + 0.01]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Wrong)
    line = refused("export", run, tmp_path / "model.onnx")
    assert "gives other logits than the model, by up to 0.01; nothing was written" in line
    assert list(tmp_path.iterdir()) == []


def test_names_are_checked_before_anything_else(run, refused, tmp_path):
    assert "the file must be named .onnx" in refused("export", run, tmp_path / "model.pt")
