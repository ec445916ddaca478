"""docs/configuration.md is what the dataclasses say, and the run it shows is one."""

import re
import subprocess
import sys
from pathlib import Path

from widemargin.cli.main import run
from widemargin.config.toml import read_toml

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "configuration.md"


def test_the_page_is_up_to_date():
    made = subprocess.run([sys.executable, "scripts/configuration_page.py"], cwd=ROOT, capture_output=True, check=True)
    assert PAGE.read_text(encoding="utf-8") == made.stdout.decode(), (
        "python scripts/configuration_page.py makes it anew"
    )


def test_its_run_is_read_and_trains(tmp_path, capsys):
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "my.toml").write_text(text, encoding="utf-8")
    config = read_toml(tmp_path / "my.toml")
    assert (config.emr.at, config.objective.attack.eps, config.data.held_out) == ("adversarial", 8 / 255, 2000)
    small = ("epochs=1", "batch_size=10", "data.name=cifar10-embedded", "data.held_out=20", "model.width=4")
    small += ("optimizer.schedule=none", "evaluation.attacks=['clean']", "watch.attack=none")
    command = ["train", str(tmp_path / "my.toml"), "--out", str(tmp_path / "run")]
    assert run([*command, *(word for change in small for word in ("--set", change))]) == 0, capsys.readouterr().err
