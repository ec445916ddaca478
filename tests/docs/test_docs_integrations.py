"""What docs/integrations.md says was tested is what constraints.txt pins; its tracker works as it stands."""

import re
import tomllib
from pathlib import Path

from widemargin.config.toml import with_overrides
from widemargin.recipes import find_recipe
from widemargin.training import train

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
PINS = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| [")]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def test_the_versions_are_those_of_the_constraints():
    assert len(ROWS) == 11
    for tool, _, _, tested, _ in ROWS:
        for named, version in re.findall(r"([\w-]+ )?(\d+\.\d+\.\d+)", tested):
            name = named.strip() or re.search(r"\[([^]]+)\]", tool)[1]
            package = {"Weights & Biases": "wandb"}.get(name, name).lower()
            assert PINS[package] == version, tool


def test_the_extras_are_there_and_the_dev_environment_has_what_it_says():
    dev = set(re.search(r"widemargin\[(.*)\]", EXTRAS["dev"][0])[1].split(","))
    for tool, extra, _, _, in_dev in ROWS[1:]:
        assert extra.strip("`") in EXTRAS, tool
        assert (in_dev == "yes") == (extra.strip("`") in dev), tool


def test_the_tracker_of_the_page(tmp_path, capsys):
    names = {}
    exec(re.search(r"```python\n(class Printed.*?)```", PAGE, re.DOTALL)[1], names)
    small = ["epochs=1", "data.train_limit=40", "data.test_limit=20", "model.hidden=[8]", "watch.margins=[]"]
    config = with_overrides(find_recipe("demo/plain").config, small)
    train(config, out=tmp_path / "run", device="cpu", trackers=[names["Printed"]()])
    printed = capsys.readouterr().out
    assert printed.startswith("demo/plain {")
    assert "\n1 {'epoch': 1.0" in printed
