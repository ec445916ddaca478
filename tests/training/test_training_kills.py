"""kill -9 at any instant, the same command again: the same bits as a run that nobody killed."""

import random
import signal
from collections import Counter

import pytest

from widemargin.config.checkpoint import load_checkpoint
from widemargin.config.toml import to_toml

KINDS = ("step", "watch", "between", "file", "write")
SMALL = ("epochs=2", "data.train_limit=80", "data.test_limit=30", "optimizer.schedule.milestones=[1]")
VALIDATED = ("data.held_out=30", 'watch.attack={kind="pgd", eps=0.1, step_size=0.05, steps=2}', "watch.margins=[]")
ATTACK = 'attack={kind="pgd", eps=0.1, step_size=0.05, steps=2, random_start="uniform"}'
KL_ATTACK = 'attack={kind="pgd", eps=0.1, step_size=0.05, steps=2, random_start="gaussian"}'
FGSM = 'attack={kind="fgsm", eps=0.1}'
TEACHER = 'teacher={kind="mlp", hidden=[8]}'
METHODS = {
    "st": (),
    "st-exact": ('emr={kind="exact", weight=0.1}',),
    "st-approximate-igr": ('emr={kind="approximate", weight=0.1}', "igr={weight=0.1}"),
    "st-linf": ('emr={kind="stochastic", weight=1e-4, norm="linf"}', 'igr={weight=0.02, norm="linf", squared=false}'),
    "fgsm-aligned": (f'objective={{kind="adversarial", {FGSM}}}', "grad_align={weight=0.2, eps=0.1}"),
    "st-stochastic-every-3": ('emr={kind="stochastic", weight=0.1, every=3}', "data.augmentation=crop-flip"),
    "at-margins": (f'objective={{kind="adversarial", {ATTACK}}}', 'watch.margins=["train", "test"]'),
    "trades-averaged": (f'objective={{kind="trades", beta=3.0, {KL_ATTACK}}}', "averaging={decay=0.9}"),
    "averaged-beside": (f'objective={{kind="adversarial", {ATTACK}}}', "averaging={decay=0.9, beside=true}"),
    "awp-averaged": (f'objective={{kind="trades", {KL_ATTACK}}}', "awp={gamma=0.01, start=1}", "averaging={decay=0.9}"),
    "mart": (f'objective={{kind="mart", {ATTACK}}}',),
    "mail": (f'objective={{kind="mail", over="at", slope=10.0, bias=-0.5, burn_in=1, {ATTACK}}}',),
    "ikl": (f'objective={{kind="ikl", ramp=2, {KL_ATTACK}}}', "awp={gamma=0.01, start=1}"),
    "free": ('objective={kind="free", eps=0.1, replays=3}', 'watch.margins=["train"]'),
    "lbgat-averaged": (f'objective={{kind="lbgat", {KL_ATTACK}}}', TEACHER, "averaging={decay=0.9}"),
    "he": ('head={kind="hypersphere"}', f'objective={{kind="adversarial", {ATTACK}}}', "averaging={decay=0.9}"),
    "augmented": (
        f'objective={{kind="trades", {KL_ATTACK}}}',
        "data.augmentation=['crop-flip', 'autoaugment', 'cutmix', 'cutout']",
    ),
    "l-softmax": ('head={kind="large-margin", annealing={kind="geometric"}}', 'emr={kind="exact", weight=0.1}'),
    "stopping": ("epochs=8", "stopping={patience=2}", "optimizer.lr=0.5", 'watch.attack={kind="fgsm", eps=0.2}'),
    "batch-norm": (
        'model={kind="resnet18", width=2}',
        f'objective={{kind="adversarial", {ATTACK}}}',
        "batch_size=10",
        'data={name="cifar10-embedded", train_limit=20, test_limit=10, held_out=10}',
    ),
}


@pytest.fixture(scope="module")
def undisturbed(nursery, tiny, tmp_path_factory, left_in):
    """(name, how often it saves) -> (configuration, what the run left, its chosen epoch, the points it passed)."""
    done = {}

    def get(name, every):
        if (name, every) not in done:
            config = tiny(*SMALL, *VALIDATED, *METHODS[name])
            out = tmp_path_factory.mktemp(name) / "run"
            ended = nursery.run(to_toml(config), out, script=saving(every))
            assert ended.code == 0, ended.err
            done[name, every] = config, left_in(out), chosen_epoch(out), ended.passed
        return done[name, every]

    return get


def saving(every):
    return f"train(config, out=out, checkpoint_every={every})"


def chosen_epoch(folder):
    return load_checkpoint(folder / "best.safetensors").description.epoch


def kill_and_go_on(name, nursery, undisturbed, out, left_in, *, kills, every):
    """Kill the run so often, at points drawn for it; returns the points at which it died."""
    config, expected, chosen, points = undisturbed(name, every)
    draw, died = random.Random(f"{name} {every} {kills}"), []
    while len(died) < kills:
        kind = draw.choice(KINDS)
        number = draw.randint(1, points[kind])
        ended = nursery.run(to_toml(config), out, (kind, number, signal.SIGKILL), script=saving(every))
        if ended.code == 0:  # it had fewer such points to go, and came to its end
            left_in(out).assert_same(expected)
            out = out.with_name(out.name + "+")
            continue
        assert ended.code == -signal.SIGKILL, (kind, number, ended.err)
        died.append((kind, number))
    assert nursery.run(to_toml(config), out, script=saving(every)).code == 0
    left_in(out).assert_same(expected)
    assert chosen_epoch(out) == chosen
    return died


@pytest.mark.parametrize("name", METHODS)
def test_killed_at_random_points_a_run_ends_where_it_would_have_ended(name, nursery, undisturbed, tmp_path, left_in):
    kill_and_go_on(name, nursery, undisturbed, tmp_path / "run", left_in, kills=2, every=1)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_kind_of_point(kind, nursery, undisturbed, tmp_path, left_in):
    """Between the files of an epoch (best weights, metrics, last weights) everywhere."""
    config, expected, chosen, points = undisturbed("l-softmax", None)
    some = (points[kind] // 2, points[kind])
    for number in range(1, points[kind] + 1) if kind == "between" else some:
        out = tmp_path / str(number)
        assert nursery.run(to_toml(config), out, (kind, number, signal.SIGKILL)).code == -signal.SIGKILL
        assert nursery.run(to_toml(config), out).code == 0
        left_in(out).assert_same(expected)
        assert chosen_epoch(out) == chosen


def test_early_stopping_really_stops_early(undisturbed):
    config, left, chosen, _ = undisturbed("stopping", 1)
    assert chosen + 2 == len(left.metrics) < config.epochs


@pytest.mark.long
@pytest.mark.parametrize("every", [None, 1])
@pytest.mark.parametrize("name", METHODS)
def test_killed_twenty_times(name, every, nursery, undisturbed, tmp_path, left_in):
    died = kill_and_go_on(name, nursery, undisturbed, tmp_path / "run", left_in, kills=20, every=every)
    print(f"{name}, saved every {every}: {len(died)} kills: {Counter(kind for kind, _ in died)}")
