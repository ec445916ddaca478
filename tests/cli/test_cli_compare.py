"""``widemargin compare`` as a user gives it: two trained networks, two seeds each, judged on the same digits."""

import json
import re
import shutil

import pytest
import torch

import widemargin
from widemargin.cli.main import run
from widemargin.core.records import sealed
from widemargin.errors import InputError
from widemargin.evaluation.comparison import mcnemar

COUNT = 60
ATTACKS = ("fgsm", "pgd3")


@pytest.fixture(scope="module")
def judged(recipe, tmp_path_factory):
    """Folders small/0, small/1, large/0, large/1 and an evaluation of each."""
    place = tmp_path_factory.mktemp("judged")
    for name, hidden in (("small", "[2]"), ("large", "[32]")):
        for seed in (0, 1):
            out = place / "runs" / f"{name}-{seed}"
            settings = (f"name={name}", f"seed={seed}", f"model.hidden={hidden}", "data.test_limit=200")
            words = [word for setting in settings for word in ("--set", setting)]
            assert run(["train", str(recipe), *words, "--out", str(out)]) == 0
            evaluation = ["evaluate", str(out), "--attacks", "clean,fgsm,pgd3", "--limit", str(COUNT)]
            assert run([*evaluation, "--out", str(place / name / str(seed))]) == 0
    return place


@pytest.fixture
def answer(capsys, monkeypatch, judged):
    """(code, out, err) of a comparison."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(judged)

    def give(*arguments):
        capsys.readouterr()
        code = run(["compare", *map(str, arguments)])
        return code, *capsys.readouterr()

    return give


def column(folder, name):
    rows = [json.loads(line) for line in (folder / "examples.jsonl").read_text().splitlines()]
    return torch.tensor([row["verdicts"][name] for row in rows])


def test_the_answer_is_a_sentence_and_a_table(answer, judged):
    code, out, err = answer("large/0", "small/0", "--by", "clean")
    assert (code, err) == (0, "")
    a, b = column(judged / "large" / "0", "clean"), column(judged / "small" / "0", "clean")
    shown = [f"{100 * side.double().mean():.2f}" for side in (a, b)]
    assert out.startswith(f"By clean large is ahead of small: {shown[0]}% against {shown[1]}%, ")
    lines = {line.split()[1]: line for line in out.splitlines() if line.startswith("│")}
    assert list(lines) == ["clean", "fgsm", "pgd3", "margin"]
    for part in (*shown, f"{float(shown[0]) - float(shown[1]):+.2f}"):
        assert part in lines["clean"]
    wins = int((a & ~b).sum()), int((b & ~a).sum())
    assert (
        f"{COUNT} images, paired; the first alone is ahead on {wins[0]}, the second alone on {wins[1]} (clean)" in out
    )


def test_without_a_name_the_strongest_common_attack_is_compared(answer, judged):
    left = {name: sum(int(column(judged / of / "0", name).sum()) for of in ("large", "small")) for name in ATTACKS}
    assert answer("large/0", "small/0")[1].startswith(f"By {min(left, key=left.get)} ")


def test_the_json_is_the_librarys(answer, judged):
    code, out, _ = answer("large/0", "small/0", "--by", "pgd3", "--json")
    assert code == 0
    record = json.loads(out)
    found = widemargin.compare("large/0", judged / "small" / "0", by="pgd3")
    assert record["sentence"] == found.sentence()
    assert (record["low"], record["high"]) == (found.low, found.high)
    assert record["folders"] == [["large/0"], ["small/0"]]
    assert record["p_value"] == mcnemar(record["only_first"], record["only_second"])
    assert [one["by"] for one in record["others"]] == ["clean", "fgsm", "margin"]
    assert record["decided"] is (not record["low"] <= 0 <= record["high"])


@pytest.mark.parametrize("spelled", ["large/0,large/1", "large/*", "large/0, large/[1]", "{judged}/large/*"])
def test_seeds_are_compared_with_seeds(answer, judged, spelled):
    code, out, err = answer(spelled.format(judged=judged), "small/*", "--by", "clean")
    assert (code, err) == (0, "")
    assert re.match(r"By clean (large is ahead of small|no difference is seen: large \S+, small).*; 2 seeds\)\.", out)
    assert f"2 and 2 seeds on the same {COUNT} images, paired by seed" in out


def test_seeds_that_differ_are_not_paired(answer):
    _, out, _ = answer("large/0,large/1", "small/0,small/0,small/1", "--by", "clean")
    assert "2 and 3 seeds" in out
    assert "not paired: their seeds are not the same" in out


def test_a_list_of_folders_in_python(judged):
    sides = [[judged / name / str(seed) for seed in (0, 1)] for name in ("large", "small")]
    found = widemargin.compare(*sides, by="margin")
    assert (found.first, found.second, found.seeds, found.paired) == ("large", "small", 2, True)
    means = []
    for side in sides:
        rows = [[json.loads(line) for line in (one / "examples.jsonl").read_text().splitlines()] for one in side]
        right = [[row["margin"] for row in of_seed if row["verdicts"]["clean"]] for of_seed in rows]
        finite = [[value for value in values if value is not None] for values in right]
        means.append(sum(sum(values) / len(values) for values in finite) / 2)
    assert [found.value_first, found.value_second] == pytest.approx(means)


def changed_report(folder, **changes):
    """The report of an evaluation with other settings, as if it had been made with them."""
    path = folder / "report.json"
    content = {key: value for key, value in json.loads(path.read_text()).items() if key != "digest"}
    changed = {key: value for key, value in (content | changes).items() if value is not None}
    path.write_text(json.dumps(sealed(changed)))


def copied(judged, tmp_path, name="small/0"):
    return shutil.copytree(judged / name, tmp_path / "copy")


def column_at(eps, step):
    return {"columns": {"clean": {"attack": "clean"}, "pgd3": {"attack": "pgd3", "radius": eps, "step_size": step}}}


BEFORE = {"columns": None, "eps": [{"written": "0.1", "value": 0.1}], "step_size": 0.02}
"""As versions wrote it that knew one set of attacks in a folder."""
OTHERWISE = {
    "another eps": (
        column_at(0.1, 0.02),
        "pgd3",
        r"pgd3 is norm linf, eps 0.05, step size 0.02 in large/0 and norm linf, eps 0.1, step size 0.02 in .*copy;",
    ),
    "another step": (column_at(0.05, None), "pgd3", r"step size 0.02 in large/0 and .* step size eps/4 in"),
    "another eps, of an earlier version": (BEFORE, "pgd3", r"eps 0.05, .* in large/0 and .* eps 0.1, step size 0.02"),
    "another norm": ({"norm": "l2"}, "margin", r"margin is norm linf in large/0 and norm l2 in"),
}


@pytest.mark.parametrize("how", OTHERWISE)
def test_what_was_found_otherwise_is_not_compared(answer, judged, tmp_path, how):
    changes, by, told = OTHERWISE[how]
    folder = copied(judged, tmp_path)
    changed_report(folder, **changes)
    code, out, err = answer("large/0", folder, "--by", by)
    assert (code, out) == (2, "")
    assert re.search(told, err), err
    assert len(err.splitlines()) == 1
    code, out, _ = answer("large/0", folder, "--by", "clean")
    assert code == 0
    assert not re.search(rf"^│ {by} ", out, re.MULTILINE), "nor in the table beside what can be"


def test_columns_that_say_nothing_are_refused(answer, judged, tmp_path):
    folder = copied(judged, tmp_path)
    changed_report(folder, columns={"pgd3": {"radius": 0.1}})
    assert "columns must say of each attack what it was; evaluate again" in answer("large/0", folder)[2]


def test_an_evaluation_of_an_earlier_version_is_compared(answer, judged, tmp_path):
    folder = copied(judged, tmp_path)
    content = json.loads((folder / "report.json").read_text())
    changed_report(folder, columns=None)
    assert content["columns"]
    assert answer("large/0", folder, "--by", "pgd3")[1] == answer("large/0", "small/0", "--by", "pgd3")[1]


def test_equal_labels_of_other_images_are_refused(answer, judged, tmp_path):
    folder = copied(judged, tmp_path)
    (folder / "shards" / "00000.sha256").write_text("0" * 64)
    assert "have equal labels and other images" in answer("large/0", folder)[2]


def test_shards_of_another_size_do_not_make_images_others(answer, judged, tmp_path):
    evaluation = ["evaluate", str(judged / "runs" / "small-0"), "--attacks", "clean", "--limit", str(COUNT)]
    assert run([*evaluation, "--shard-size", "25", "--out", str(tmp_path / "cut")]) == 0
    assert answer("large/0", tmp_path / "cut", "--by", "clean")[0] == 0


def test_fewer_images_are_refused(answer, judged, tmp_path):
    evaluation = ["evaluate", str(judged / "runs" / "small-0"), "--attacks", "clean", "--limit", "10"]
    assert run([*evaluation, "--out", str(tmp_path / "few")]) == 0
    assert (
        "were not judged on the same images (60 and 10 labels"
        in answer("large/0", tmp_path / "few", "--by", "clean")[2]
    )


MISTAKES = {
    "another name": (("large/0", "small/0", "--by", "autoattack"), "large/0 was not judged by 'autoattack'; it has"),
    "no evaluation": (("runs/large-0", "small/0"), "runs/large-0 has no report.json; give the folder of a finished"),
    "nothing matches": (("medium/*", "small/0"), "FIRST: nothing matches 'medium/*'; give evaluation folders"),
    "no name at all": (("large/0", ","), "SECOND must name at least one evaluation folder, got ','"),
    "one against several": (("large/0", "small/*"), "1 seeds against 2, which are not the same ones"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_in_a_line(answer, mistake):
    arguments, says = MISTAKES[mistake]
    code, out, err = answer(*arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_damaged_record_is_refused(answer, judged, tmp_path):
    folder = copied(judged, tmp_path)
    path = folder / "examples.jsonl"
    path.write_text(path.read_text().replace('"clean": true', '"clean": false', 1))
    assert "examples.jsonl" in answer("large/0", folder)[2]
    path.unlink()
    with pytest.raises(InputError, match="holds no evaluation of single images"):
        widemargin.compare(judged / "large" / "0", folder)
