"""A run folder is one run's, and one process's: a second process is refused for as long as the first works."""

import pytest

from faults import COMMAND, contents
from widemargin import InputError
from widemargin.config.toml import to_toml
from widemargin.evaluation import load_target
from widemargin.training import step as steps_module
from widemargin.training import train, trainer
from widemargin.training.setup import load_splits
from widemargin.training.step import train_step


@pytest.fixture
def second(nursery, tmp_path):
    """second(config): ``widemargin train`` on the same folder, in a process of its own."""
    return lambda config: nursery.run(to_toml(config), tmp_path / "run", script=COMMAND)


def assert_refused(ended, folder):
    assert ended.code == 2
    assert ended.err == (
        f"widemargin: another process works in {folder}; wait for it to end, or choose another folder "
        "(--out at the command line)\n"
    )


@pytest.mark.parametrize("other", [(), ("optimizer.lr=0.2",)])
def test_a_second_process_is_refused_while_the_first_trains(tiny, tmp_path, second, monkeypatch, left_in, other):
    out, calls = tmp_path / "run", []

    def disturbed(*args, **options):
        calls.append(None)
        if len(calls) in (2, 7):  # before the first checkpoint and after it
            before = contents(out)
            assert_refused(second(tiny(*other)), out)
            assert contents(out) == before
        return train_step(*args, **options)

    train(tiny(), out=tmp_path / "undisturbed")
    monkeypatch.setattr(steps_module, "train_step", disturbed)
    assert train(tiny(), out=out).finished
    assert len(calls) == 12
    left_in(out).assert_same(left_in(tmp_path / "undisturbed"))


def test_and_while_the_first_sets_up(tiny, tmp_path, second, monkeypatch):
    out = tmp_path / "run"

    def disturbed(*args, **options):
        assert_refused(second(tiny("optimizer.lr=0.2")), out)
        assert [path.name for path in out.iterdir()] == ["config.toml"]
        return load_splits(*args, **options)

    monkeypatch.setattr(trainer, "load_splits", disturbed)
    assert train(tiny("epochs=1"), out=out).finished


def test_the_previous_checkpoint_alone_keeps_the_folder(tiny, tmp_path):
    train(tiny("epochs=2"), out=tmp_path)
    (tmp_path / "last.safetensors").unlink()
    before = contents(tmp_path)
    with pytest.raises(InputError, match=r"holds another run \(optimizer.lr: 0.2 here, 0.1 there\); choose another"):
        train(tiny("epochs=2", "optimizer.lr=0.2"), out=tmp_path)
    assert contents(tmp_path) == before


def test_a_run_without_a_checkpoint_gives_way_to_a_corrected_one(tiny, tmp_path):
    with pytest.raises(InputError, match=r"a weight became infinite or not a number in epoch 1; lower optimizer.lr"):
        train(tiny("batch_size=150", "optimizer.lr=1e38", "optimizer.weight_decay=1e5"), out=tmp_path)  # one step
    assert not (tmp_path / "last.safetensors").exists()
    assert train(tiny("epochs=1"), out=tmp_path).finished


def test_in_one_process_too_the_folder_is_one_run_s(tiny, tmp_path, monkeypatch):
    def again(*args, **options):
        with pytest.raises(InputError, match="another process works in"):
            train(tiny(), out=tmp_path)
        return train_step(*args, **options)

    monkeypatch.setattr(steps_module, "train_step", again)
    assert train(tiny("epochs=1"), out=tmp_path).finished


IDLE = ('watch={attack={kind="fgsm", eps=0.1}, test=false, margins=[]}',)


def test_an_attack_that_nobody_would_see_is_refused_where_a_run_begins(tiny, tmp_path):
    with pytest.raises(InputError, match=r"watch.attack has no effect: .* \(--set watch.attack=none\)"):
        train(tiny(*IDLE), out=tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_run_of_before_that_has_such_an_attack_goes_on(tiny, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(to_toml(tiny(*IDLE)))
    assert train(tiny(*IDLE), out=tmp_path / "run").finished
    assert load_target(tmp_path / "run").description.run_config() == tiny(*IDLE)
