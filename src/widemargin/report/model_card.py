"""The model card of a trained network: what was measured of it, what is to be doubted, and exactly how it was made."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from widemargin.config.checkpoint import Description
from widemargin.config.toml import to_toml
from widemargin.evaluation.folder import IN_MEMORY
from widemargin.evaluation.summary import measured_lines, title_of

Record = Mapping[str, Any]


def model_card(repository: str, description: Description, records: Sequence[Record]) -> str:
    """README.md with its metadata; ``records`` are the ``report.json`` of evaluations of these very weights."""
    config = description.run_config()
    judged = "".join(_evaluation(repository, record) for record in records)
    versions = ", ".join(f"{name} {version}" for name, version in description.versions.items())
    shape = " x ".join(map(str, description.image_shape))
    return f"""---
{_metadata(repository, config.data.name, records)}
---

# {_text(repository)}

An image classifier ({description.num_classes} classes, images {shape} in [0, 1]) trained by
[widemargin](https://arxiv.org/abs/2210.05118) with the configuration `{_text(config.name)}` below.
Weights: {_text(description.selection)} (epoch {description.epoch}).

```python
import widemargin

model = widemargin.load("hf://{repository}")    # an nn.Module in evaluation mode; it normalizes by itself
```

{judged or "Nobody has evaluated these weights under attack yet: `widemargin evaluate hf://" + repository + "`."}
## How it was trained

`config.toml`, complete; `widemargin train config.toml --out DIR` repeats it ({_text(versions)}).

```toml
{to_toml(config).strip()}
```
"""


def _evaluation(repository: str, record: Record) -> str:
    rows = [
        f"| {_text(name)} | {value:.2f} | {record['intervals'][name][0]:.2f} to {record['intervals'][name][1]:.2f} |"
        for name, value in record["accuracy"].items()
    ]
    lines = [
        f"## Evaluation: {_text(title_of({**record, 'target': repository}))}",
        "",
        "| attack | accuracy % | 95% interval |",
        "|---|--:|--:|",
        *rows,
        "",
        *(f"- {_text(line)}" for line in measured_lines(record)),
        *(f"- note: {_text(note)}" for note in record["notes"]),
        *(f"- **alarm {_text(a['name'])}**: {_text(a['message'])}. {_text(a['suggestion'])}" for a in record["alarms"]),
        *([] if record["alarms"] else ["- no alarm rang"]),
        f"- made with {_text(', '.join(f'{name} {version}' for name, version in record['versions'].items()))}, on "
        f"{_text(record['device'])}",
        "",
        "Attacks give upper bounds of the robust accuracy.",
        "",
        "",
    ]
    return "\n".join(lines)


def _metadata(repository: str, data: str, records: Sequence[Record]) -> str:
    """YAML, of which JSON is a part."""
    table: dict[str, Any] = {
        "library_name": "widemargin",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "adversarial-robustness", "widemargin"],
    }
    results = [
        {
            "task": {"type": "image-classification"},
            "dataset": {"type": data, "name": data if record["data"]["name"] == IN_MEMORY else record["data"]["name"]},
            "metrics": [
                {"type": "accuracy", "value": round(value, 2), "name": _metric(record, name)}
                for name, value in record["accuracy"].items()
            ],
        }
        for record in records
    ]
    if results:
        table["model-index"] = [{"name": repository.split("/")[-1], "results": results}]
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in table.items())


def _metric(record: Record, name: str) -> str:
    """The attack with its norm and radius."""
    radius = record["columns"][name].get("eps")
    return f"accuracy, {name}" + ("" if radius is None else f" ({record['norm']} eps {radius})")


def _text(value: object) -> str:
    """On one line, and no markup of Markdown's."""
    return " ".join(str(value).split()).translate(
        str.maketrans(dict.fromkeys("<>", "")) | {ord("|"): "\\|", ord("`"): "'"}
    )
