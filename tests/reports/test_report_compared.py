"""What a page compares with the paper, what it does not, and what it says of either."""

import csv
import html
import io
import json

import pytest
from report_folders import page_of, write_evaluation, write_result

from widemargin.config_files import to_dict
from widemargin.recipes import find_recipe


def test_eps_is_given_as_written_and_as_a_number(tmp_path):
    report = write_evaluation(tmp_path / "e", count=20)
    report["eps"] = [{"written": "8/255", "value": 8 / 255}]
    report["config"] = to_dict(find_recipe("cifar-resnet18/at").config)
    (tmp_path / "e" / "report.json").write_text(json.dumps(report))
    text = page_of(tmp_path)
    assert "8/255 = 0.031373" in text
    assert "published under attack only at linf eps 0.031" in text
    assert "paper 50.88" not in text  # a number at another eps is no comparison
    assert "paper 83.39" in text


UNKNOWN = "its configuration is not known, so it is not compared with the paper"


def test_without_its_configuration_nothing_is_compared(tmp_path):
    report = write_evaluation(tmp_path / "e", count=20)
    text = page_of(tmp_path)
    assert UNKNOWN in text
    assert "paper 83.39" not in text
    config = to_dict(find_recipe("cifar-resnet18/at").config)
    for epochs, said in ((100, False), (2, True)):
        known = report | {"config": config | {"epochs": epochs}}
        (tmp_path / "e" / "report.json").write_text(json.dumps(known))
        text = page_of(tmp_path)
        assert UNKNOWN not in text
        assert "paper 83.39" in text
        assert ("changed from the recipe: epochs=2." in text) is said


@pytest.mark.parametrize(("data", "compared"), [("cifar10", True), ("svhn", False), ("cifar10-embedded", False)])
def test_what_was_judged_on_other_images_than_its_recipe_is_not_compared(tmp_path, data, compared):
    report = write_evaluation(tmp_path / "e", count=20)
    report["config"] = to_dict(find_recipe("cifar-resnet18/at").config)
    report["data"]["name"] = data
    (tmp_path / "e" / "report.json").write_text(json.dumps(report))
    text = page_of(tmp_path)
    why = f"it was judged on {data}, its recipe's data is cifar10, so it is not compared with the paper"
    assert [number in text for number in ("paper 83.39", "paper 50.88")] == [compared] * 2
    assert (why in html.unescape(text)) is not compared


@pytest.mark.parametrize(
    ("data", "count", "said"), [("cifar10", 20, True), ("cifar10", 10_000, False), ("x", 20, False)]
)
def test_an_evaluation_on_the_first_images_says_so(tmp_path, data, count, said):
    report = write_evaluation(tmp_path / "e", count=20)
    report["data"] |= {"name": data, "count": count}
    (tmp_path / "e" / "report.json").write_text(json.dumps(report))
    assert ("judged on the first 20 of 10,000 test images" in page_of(tmp_path)) is said


def test_an_evaluation_on_the_first_of_own_images_says_so(tmp_path):
    report = write_evaluation(tmp_path / "e", count=20)
    report["data"] |= {"name": "mine.npz", "count": 20, "whole": 90}
    (tmp_path / "e" / "report.json").write_text(json.dumps(report))
    assert "judged on the first 20 of 90 test images" in page_of(tmp_path)


def test_a_quick_result_says_so_and_has_nothing_beside_it(tmp_path):
    result = write_result(tmp_path / "r")
    assert "paper 97.50" in page_of(tmp_path)
    (tmp_path / "r" / "result.json").write_text(json.dumps(result | {"quick": True}))
    text = page_of(tmp_path)
    assert "made quick" in text
    assert "paper 97.50" not in text
    lines = list(csv.DictReader(io.StringIO((tmp_path.parent / f"{tmp_path.name}-out" / "report.csv").read_text())))
    assert {line["kind"] for line in lines} == {"quick reproduction"}
    assert {line["paper"] for line in lines} == {""}


def test_a_mean_says_what_holds_for_all_its_seeds(tmp_path):
    for seed in (0, 1):
        result = write_result(tmp_path / f"seed-{seed}", seed=seed)
        result["config"] |= {"epochs": 2, "batch_size": 7 + seed}
        (tmp_path / f"seed-{seed}" / "result.json").write_text(json.dumps(result | {"quick": True}))
    page_of(tmp_path)
    lines = (tmp_path.parent / f"{tmp_path.name}-out" / "report.md").read_text().splitlines()
    (mean,) = [line for line in lines if line.startswith("- mnist-mlp/st-emr, mean of 2 seeds: ")]
    assert mean.endswith(": ± over seeds; made quick: a short run and short attacks, not to be compared.")
    result["config"]["batch_size"] = 7
    (tmp_path / "seed-1" / "result.json").write_text(json.dumps(result | {"quick": True}))
    page_of(tmp_path)
    text = (tmp_path.parent / f"{tmp_path.name}-out" / "report.md").read_text()
    assert text.count("not to be compared; changed from the recipe: epochs=2, batch\\_size=7.") == 3


@pytest.mark.parametrize(
    ("step", "compared"), [(0.0078, True), (2 / 255, True), (None, True), (1e-6, False), (0.025, False)]
)
def test_pgd_with_another_step_than_the_recipes_is_not_compared(tmp_path, step, compared):
    report = write_evaluation(tmp_path / "e", count=20)
    report |= {"config": to_dict(find_recipe("cifar-resnet18/at").config), "step_size": step}
    (tmp_path / "e" / "report.json").write_text(json.dumps(report))
    text = html.unescape(page_of(tmp_path))
    assert ("paper 50.88" in text) is compared
    assert "paper 83.39" in text
    said = f"its PGD has steps of {step or 0:g}, the recipe's of 0.00784, so it is not compared"
    assert (said in text) is not compared
