"""Writes src/widemargin/cli/completions.json, what a shell can complete: when verbs, options or names have changed."""

import json
from typing import Any

from widemargin.cli.completion import FILE
from widemargin.cli.main import VERBS
from widemargin.config.toml import flat, to_dict
from widemargin.data.datasets import DATASETS
from widemargin.models import MODELS
from widemargin.recipes import all_recipes
from widemargin.recipes.tables import all_tables


def snapshot() -> str:
    """What the file has to hold."""
    settings = {key for recipe in all_recipes().values() for key in flat(to_dict(recipe.config))}
    record = {
        "verbs": {name: _described(verb.load()) for name, verb in VERBS.items()},
        "recipes": list(all_recipes()),
        "tables": list(all_tables()),
        "data": list(DATASETS),
        "models": list(MODELS),
        "settings": sorted(settings - {"name"}),
    }
    return json.dumps(record, indent=1) + "\n"


def _described(command: Any) -> dict[str, Any]:
    commands = getattr(command, "commands", {})
    options = [one for one in command.params if one.param_type_name == "option"]
    flags, others = (
        {" ".join([*one.opts, *one.secondary_opts]): one.help or "" for one in options if one.is_flag is flag}
        for flag in (True, False)
    )
    return {
        "help": (command.help or "").split("\n\n")[0],
        "arguments": [
            (one.metavar or str(one.name).upper()) + "..." * (one.nargs != 1 and "..." not in (one.metavar or ""))
            for one in command.params
            if one.param_type_name == "argument"
        ],
        "options": others,
        "flags": flags,
        "commands": {name: _described(part) for name, part in commands.items()},
    }


if __name__ == "__main__":
    FILE.write_text(snapshot(), encoding="utf-8")
