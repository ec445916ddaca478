"""Run configurations as tables, as TOML and with overrides."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from widemargin.attacks import FGSM, PGD
from widemargin.config import DataConfig, EMRConfig, EvaluationConfig, OptimizerConfig, RunConfig, WatchConfig
from widemargin.config.toml import differences, from_dict, read_toml, to_dict, to_toml, with_overrides
from widemargin.core.schema import LiteralFloat
from widemargin.errors import InputError
from widemargin.models import MLPConfig
from widemargin.objectives import Adversarial, Standard, Trades
from widemargin.recipes import all_recipes
from widemargin.regularizers import ApproximateEMR, ExactEMR, Penalty, StochasticEMR
from widemargin.schedules import Constant, OneCycle, Steps


def plain_run(**changes: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "name": "mine",
        "epochs": 2,
        "batch_size": 10,
        "data": DataConfig(name="mnist-embedded"),
        "model": MLPConfig(hidden=(8,)),
        "optimizer": OptimizerConfig(lr=0.1),
    }
    return RunConfig(**(settings | changes))


def attacked_run() -> RunConfig:
    attack = PGD(eps=LiteralFloat("8/255"), step_size=LiteralFloat("2/255"), steps=10, random_start="uniform")
    return plain_run(
        objective=Adversarial(attack=attack),
        optimizer=OptimizerConfig(lr=0.1, schedule=Steps(milestones=(30, 45), factor=0.1)),
        emr=EMRConfig(
            kind="approximate", weight=1.0, at="adversarial", scaling="released", schedule=Steps(milestones=(29,))
        ),
        watch=WatchConfig(attack=FGSM(eps=0.1), margins=("test",), margin_samples=100),
        evaluation=EvaluationConfig(attacks=("clean", "pgd20"), eps=LiteralFloat("8/255")),
    )


# There and back


@pytest.mark.parametrize("name", all_recipes())
def test_every_recipe_survives_toml(name: str, tmp_path: Path) -> None:
    config = all_recipes()[name].config
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    again = read_toml(path)
    assert again == config
    assert differences(config, again) == []
    assert from_dict(to_dict(config)) == config


def test_every_part_survives_and_fractions_stay_as_they_were_written(tmp_path: Path) -> None:
    for config in (attacked_run(), plain_run()):
        assert from_dict(to_dict(config)) == config
    toml = to_toml(attacked_run())
    assert 'eps = "8/255"' in toml
    assert 'step_size = "2/255"' in toml
    (tmp_path / "c.toml").write_text(toml)
    assert repr(read_toml(tmp_path / "c.toml").objective.attack.eps) == "8/255"


def test_numbers_may_be_whole_or_written(tmp_path: Path) -> None:
    table = to_dict(attacked_run())
    table["optimizer"]["lr"] = 1
    table["objective"]["attack"]["eps"] = "0.031"
    config = from_dict(table)
    assert (config.optimizer.lr, type(config.optimizer.lr)) == (1.0, float)
    assert config.objective.attack.eps == 0.031
    assert to_dict(config)["objective"]["attack"]["eps"] == 0.031


def test_what_is_left_out_takes_its_default() -> None:
    table = {
        "name": "mine",
        "epochs": 2,
        "batch_size": 10,
        "data": {"name": "mnist-embedded"},
        "model": {"kind": "mlp", "hidden": [8]},
        "optimizer": {"lr": 0.1},
    }
    assert from_dict(table) == plain_run()
    assert plain_run().objective == Standard()
    assert plain_run().optimizer.schedule == Constant()


# What penalty a table means


@pytest.mark.parametrize(
    ("config", "regularizer"),
    [
        (EMRConfig(kind="exact", weight=0.1), ExactEMR()),
        (EMRConfig(kind="approximate", weight=0.1), ApproximateEMR(temperature=1.0)),
        (EMRConfig(kind="approximate", weight=0.1, temperature=40.0), ApproximateEMR(temperature=40.0)),
        (EMRConfig(kind="stochastic", weight=0.1), StochasticEMR(projections=1)),
        (EMRConfig(kind="stochastic", weight=0.1, projections=3), StochasticEMR(projections=3)),
    ],
)
def test_the_penalty_of_a_run(config: EMRConfig, regularizer: Any) -> None:
    assert plain_run(emr=config).penalties() == (Penalty(name="emr", regularizer=regularizer, weight=0.1),)
    assert plain_run().penalties() == ()
    others = {"at": "adversarial", "scaling": "released", "every": 4, "schedule": OneCycle(epochs=10, peak=3)}
    expected = Penalty(name="emr", regularizer=regularizer, weight=0.1, **others)
    assert dataclasses.replace(config, **others).penalty() == expected


# Overrides


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("epochs=7", lambda c: c.epochs == 7),
        ("name=other", lambda c: c.name == "other"),
        ('name="other"', lambda c: c.name == "other"),
        (" optimizer.lr = 0.5 ", lambda c: c.optimizer.lr == 0.5),
        ("optimizer.lr=1/8", lambda c: c.optimizer.lr == 0.125),
        ("objective.attack.eps=4/255", lambda c: repr(c.objective.attack.eps) == "4/255"),
        ("objective.attack.random_start=false", lambda c: c.objective.attack.random_start is False),
        ("model.hidden=[3, 4]", lambda c: c.model.hidden == (3, 4)),
        ("watch.margins=[]", lambda c: c.watch.margins == ()),
        ("emr.weight=0.3", lambda c: c.emr.weight == 0.3),
        ("emr=none", lambda c: c.emr is None),
        ("watch.attack=none", lambda c: c.watch.attack is None),
        ("data.train_limit=100", lambda c: c.data.train_limit == 100),
        (
            'optimizer.schedule={kind = "one-cycle", epochs = 9, peak = 3}',
            lambda c: c.optimizer.schedule == OneCycle(epochs=9, peak=3),
        ),
    ],
)
def test_overrides(override: str, read: Callable[[RunConfig], bool]) -> None:
    changed = with_overrides(attacked_run(), [override])
    assert read(changed)
    assert not read(attacked_run())


def test_overrides_apply_in_order_and_leave_the_rest() -> None:
    changed = with_overrides(attacked_run(), ["epochs=3", "epochs=4", "seed=9"])
    assert changed == dataclasses.replace(attacked_run(), epochs=4, seed=9)
    assert differences(attacked_run(), changed) == ["seed: 0 here, 9 there", "epochs: 2 here, 4 there"]


def test_another_kind_keeps_the_settings_that_it_has_too() -> None:
    run = attacked_run()
    assert isinstance(run.objective, Adversarial)
    trades = with_overrides(run, ["objective.kind=trades", "objective.beta=3"])
    assert trades.objective == Trades(attack=run.objective.attack, beta=3)
    constant = with_overrides(run, ["optimizer.schedule={kind='steps', milestones=[1], factor=0.5}"])
    constant = with_overrides(constant, ["optimizer.schedule.kind=constant"])
    assert constant.optimizer.schedule == Constant()
    standard = with_overrides(run, ["objective.kind=standard", "emr.at=clean"])
    assert standard.objective == Standard()


@pytest.mark.parametrize(
    ("before", "overrides", "after"),
    [
        ({"kind": "approximate", "temperature": 40.0}, ["emr.kind=exact"], {"kind": "exact"}),
        (
            {"kind": "approximate", "temperature": 40.0},
            ["emr.projections=3", "emr.kind=stochastic"],
            {"kind": "stochastic", "projections": 3},
        ),
        ({"kind": "stochastic", "projections": 3}, ["emr.kind=approximate"], {"kind": "approximate"}),
        (
            {"kind": "approximate", "temperature": 40.0},
            ["emr.kind=approximate"],
            {"kind": "approximate", "temperature": 40.0},
        ),
    ],
)
def test_another_form_of_emr_keeps_the_settings_that_it_has_too(
    before: dict[str, Any], overrides: list[str], after: dict[str, Any]
) -> None:
    common = {"weight": 0.3, "every": 2, "schedule": Steps(milestones=(1,))}
    changed = with_overrides(plain_run(emr=EMRConfig(**before, **common)), overrides)
    assert changed.emr == EMRConfig(**after, **common)


def test_a_whole_part_can_be_added() -> None:
    changed = with_overrides(plain_run(), ["emr.kind=exact", "emr.weight=0.1"])
    assert changed.emr == EMRConfig(kind="exact", weight=0.1)
    assert differences(plain_run(), changed)[0] == "emr.kind: None here, 'exact' there"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs", r"--set 'epochs': write path=value, for example emr.weight=0.3"),
        ("=3", r"--set '=3': write path=value"),
        ("epochs.more=3", r"--set 'epochs.more=3': 'epochs' is a value, not a table"),
        ("epoch=3", r"unknown key 'epoch'; did you mean 'epochs'\?"),
        ("optimizer.learning_rate=3", r"unknown key 'optimizer.learning_rate'; known here: lr, weight_decay"),
        ("objective.attack.stepsize=0.1", r"unknown key 'objective.attack.stepsize'; did you mean 'step_size'\?"),
        ("lr=0.1", r"unknown key 'lr'; did you mean 'optimizer.lr'\?"),
        ("steps=9", r"unknown key 'steps'; known here: name, seed"),  # of an attack, two tables down
        ("weight=1", r"did you mean 'objective.weight' or 'emr.weight' or 'igr.weight' or 'grad_align.weight'\?"),
        ("optimiser.lr=1", r"unknown key 'optimiser'; did you mean 'optimizer'\?"),
        ("epochs=many", r"epochs must be a whole number, got 'many'"),
        ("epochs=1.5", r"epochs must be a whole number, got 1.5"),
        ("epochs=true", r"epochs must be a whole number, got True"),
        ("epochs=0", r"epochs must be a whole number of at least 1, got 0"),
        ("batch_size=0", r"batch_size must be a whole number of at least 1, got 0"),
        ("seed=-1", r"^seed must be in \[0, 2\^63\), got -1; try 0"),
        ("name=3", r"""name must be text, got 3; put it in quotes: --set 'name="3"'$"""),
        ("name=true", r"""name must be text, got True; put it in quotes: --set 'name="true"'$"""),
        ("name=2024-02-03", r"""name must be text, got .*; put it in quotes: --set 'name="2024-02-03"'$"""),
        ("data.name=[3]", r"data.name must be text, got \[3\]$"),
        ("watch.test=1", r"watch.test must be true or false, got 1"),
        ("optimizer.lr=true", r"optimizer.lr must be a number, got True"),
        ("optimizer.lr=fast", r"optimizer.lr: 'fast' is not a number; write 0.031 or 8/255"),
        ("optimizer.lr=0", r"optimizer.lr is out of range: 0.0; usual are lr 0.01 to 0.1"),
        ("optimizer.lr=nan", r"optimizer.lr is out of range: nan"),
        ("optimizer.lr=inf", r"optimizer.lr is out of range: inf"),
        ("optimizer=none", r"optimizer is missing; add it: a table such as {lr = ...}"),
        ("optimizer.momentum=1", r"optimizer.momentum is out of range: 1.0"),
        ("optimizer.weight_decay=-1", r"optimizer.weight_decay is out of range: -1.0"),
        ("objective.attack.eps=8", r"objective.attack: Linf.eps must be in \(0, 1\], got 8.0; .* did you mean 8/255\?"),
        ("objective.attack.norm=l1", r"objective.attack.norm must be one of 'linf', 'l2', got 'l1'"),
        ("objective.attack.random_start=true", r"random_start must be one of False, 'uniform', 'gaussian'.* got True"),
        (
            "objective.attack.kind=cw",
            r"objective.attack.kind must be one of fgsm, pgd; got 'cw'; one of your own",
        ),
        (
            "optimizer.schedule.kind=mine",
            r"optimizer.schedule.kind must be one of .*steps.*; got 'mine'; one of your own",
        ),
        ("head={kind='large-margin', annealing={kind='mine'}}", r"annealing.kind must be one of .*; got 'mine'$"),
        (
            "objective.kind=mine",
            r"objective.kind must be one of .*; got 'mine'; one of your own needs --import MODULE$",
        ),
        ("head.kind=mine", r"head.kind must be one of .*; got 'mine'; one of your own needs --import MODULE$"),
        ("objective.attack=pgd", r"attack must be a table, got 'pgd'; .*attack.kind must be one of fgsm, pgd"),
        ("model.kind=vgg", r"model.kind must be one of .*mlp.*; got 'vgg'; one of your own needs --import MODULE$"),
        ("model.hidden=8", r"model.hidden must be a list, each element a whole number, got 8"),
        ("model.hidden=[8.5]", r"model.hidden must be a list, each element a whole number, got \[8.5\]"),
        ("model=mlp", r"model must be a table, got 'mlp'; set its parts, first of all"),
        ("model=none", r"model is missing; add it: a table such as {kind = 'mlp'}"),
        (
            "objective={kind = 'trades'}",
            r"objective.attack is missing; add it: a table such as {kind = 'pgd'",
        ),
        ("objective={attack={kind='fgsm', eps=0.1}}", r"objective.kind must be one of"),
        ("data=mnist", r"data must be a table, got 'mnist'"),
        ("data.name=none", r"data.name is missing; add it: text"),
        ("data.augmentation=blur", r"data.augmentation must be one of .*, got 'blur'"),
        ("data.augmentation=['crop-flip', 'blur']", r"data.augmentation must be one of .*, got 'blur'"),
        (
            "data.augmentation=['crop-flip', {kind='blur'}]",
            r"data.augmentation\[1\].kind must be one of .*; got 'blur'",
        ),
        ("data.augmentation=[['cutout']]", r"data.augmentation\[0\] must be a table, got \['cutout'\]"),
        ("data.augmentation=['none', 'cutout']", r"\['none', 'cutout'\] does nothing in part; list what is done"),
        ("data.augmentation=[]", r"data.augmentation \[\] does nothing in part"),
        ("data.augmentation={kind='cutout', size=0}", r"data.augmentation: Cutout.size must be a whole number of at"),
        ("data.extra=x.npz", r"data.extra has no effect without data.extra_share; set both"),
        ("data.extra_share=0.5", r"data.extra_share has no effect without data.extra; set both"),
        ("data={name='mnist', extra='x.npz', extra_share=0}", r"data.extra_share must be a share in \(0, 1\], got 0.0"),
        ("data={name='mnist', extra='x.npz', extra_share=1.5}", r"data.extra_share must be a share in \(0, 1\]"),
        ("data={name='mnist', extra=[], extra_share=0.5}", r"data.extra is empty; give the path of an .npz file"),
        ("data={name='mnist', extra=['x.npz', ''], extra_share=0.5}", r"data.extra is empty"),
        (
            "data={name='mnist', extra='x.npz', extra_share=0.001}",
            r"extra_share must be at least one image of",
        ),
        ("data.held_out=-1", r"data.held_out must be at least 0, got -1; 0 holds out none"),
        ("data.train_limit=0", r"data.train_limit must be at least 1, got 0; leave it out to use every image"),
        ("emr={weight = 0.1}", r"emr.kind is missing; add it: one of 'exact', 'approximate', 'stochastic'"),
        ("emr.kind=fast", r"emr.kind must be one of 'exact', 'approximate', 'stochastic', got 'fast'"),
        ("emr.weight=-1", r"emr.weight must be a number >= 0, got -1.0"),
        ("emr.weight=nan", r"emr.weight must be a number >= 0, got nan"),
        ("emr.temperature=0", r"emr.* ApproximateEMR.temperature must be a positive number, got 0.0"),
        ("emr.every=0", r"emr.every must be a whole number of at least 1, got 0"),
        ("emr.at=start", r"emr.at must be one of 'clean', 'adversarial', got 'start'"),
        ("emr.scaling=sum", r"emr.scaling must be one of 'mean', 'released', got 'sum'"),
        ("emr.schedule.milestones=[3, 2]", r"emr.schedule: Steps.milestones must be increasing epochs"),
        ("watch.every=0", r"watch.every must be at least 1, got 0; 1 measures after every epoch"),
        ("watch.margins=['test', 'test']", r"watch.margins names a split twice: \['test', 'test'\]; leave one out"),
        ("stopping.patience=0", r"stopping.patience must be at least 1 epoch, got 0; remove stopping to train"),
        ("watch.margins=['validation']", r"watch.margins must be a list, each element one of 'train', 'test'"),
        ("watch.margin_samples=0", r"watch.margin_samples must be at least 1, got 0; set watch.margins = \[\]"),
        ("evaluation.attacks=['cw']", r"evaluation: unknown attack 'cw'; known are clean, fgsm, pgdN"),
        ("evaluation.eps=8", r"evaluation: .*did you mean 8/255\?"),
        (
            "evaluation={attacks = ['clean', 'autoattack'], eps = 8}",
            r"evaluation: Linf.eps must be in \(0, 1\], got 8.0; .*did you mean 8/255\?",
        ),
        ("evaluation={attacks = ['clean'], eps = 0, norm = 'l2'}", r"evaluation: L2.eps must be a positive number"),
        (
            "evaluation.attacks=['pgd10', 'clean', 'pgd-10']",
            r"evaluation.attacks names an attack twice: \['pgd10', 'pgd-10'\]; leave one out",
        ),
        ("evaluation.attacks=['clean', 'clean']", r"evaluation.attacks names an attack twice: \['clean', 'clean'\]"),
        # no effect, or none of this kind
        ("emr.kind=exact; emr.temperature=1", r"emr.temperature has no effect on exact EMR; remove it, or use kind ="),
        ("emr.temperature=1; emr.kind=exact", r"emr.temperature has no effect on exact EMR"),
        ("objective.kind=standard; objective.beta=6", r"unknown key 'objective.beta'"),
        ("objective.beta=6; objective.kind=standard", r"unknown key 'objective.beta'"),
        ("objective.attack.steps=9; objective.kind=standard", r"unknown key 'objective.attack'"),
        ("objective.nonsense=3; objective.kind=trades", r"unknown key 'objective.nonsense'"),
        ("objective.attack={kind = 'fgsm', eps = 0.1, steps = 3}", r"unknown key 'objective.attack.steps'"),
    ],
)
def test_wrong_overrides(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        with_overrides(attacked_run(), override.split("; "))
    assert "\n" not in str(caught.value)


# Files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"epochs = ", r"c.toml is not valid TOML"),
        (b"\xff\xfe", r"c.toml is not valid TOML"),
        (b"", r"c.toml: name is missing; add it"),
        (b"[[model]]", r"c.toml: model must be a table, .* the kind: model.kind must be one of"),
        (b"name = 'x'\nepochz = 3", r"c.toml: unknown key 'epochz'; did you mean 'epochs'\?"),
    ],
)
def test_bad_files(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_toml(tmp_path / "c.toml")


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*absent.toml: No such file or directory"):
        read_toml(tmp_path / "absent.toml")
    with pytest.raises(InputError, match=r"cannot read .*: Is a directory"):
        read_toml(tmp_path)
