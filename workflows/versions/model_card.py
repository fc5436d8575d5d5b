"""The model card: data, recipe, figures, and how to load the model.

Markdown with Hugging Face's header, built from plain mappings at the end of a run.
"""

from collections.abc import Mapping, Sequence

import yaml

from bert_core.tasks.metrics import readable_metric
from workflows.reporting.render import markdown_text
from workflows.runs.tracker import without_machine_paths

LICENCE_NOTE = (
    "The training code is licensed under Apache-2.0. The weights have no licence of their own: "
    "whether you may distribute them depends on the training texts."
)


def model_card(
    *,
    name: str,
    summary: str,
    data: Mapping[str, object],
    recipe: Mapping[str, object],
    figures: Mapping[str, float],
    baseline: Mapping[str, float],
    lineage: Mapping[str, object],
    predicts_next: bool = False,
) -> str:
    """Returns the card of a pre-trained encoder, without paths of this machine.

    `summary` is a sentence or two. Each entry of `data`, `recipe` and `lineage` becomes a row of
    its table, `{"Tokens": 1_234_567}`. `figures` are measured on held-out documents; `baseline`
    has the unigram model's values of some of them. `predicts_next` is True for a left-to-right
    model, False for one that fills [MASK].
    """
    pipeline, kind = ("text-generation", "next") if predicts_next else ("fill-mask", "masked")
    sections = [
        _header(pipeline),
        f"# {markdown_text(name)}\n\n{summary}",
        f"## Data\n\n{_table(('', 'Value'), data)}",
        f"## Recipe\n\n{_table(('', 'Value'), recipe)}",
        f"## Metrics on held-out documents\n\n{_figures(figures, baseline, kind)}",
        _loading(pipeline, None if predicts_next else "The capital of France is [MASK]."),
    ]
    return _finished(sections, lineage)


def finetuned_model_card(
    *,
    name: str,
    summary: str,
    data: Mapping[str, object],
    recipe: Mapping[str, object],
    figures: Mapping[str, float],
    lineage: Mapping[str, object],
    pipeline: str | None,
    comparison: Sequence[tuple[str, ...]] = (),
) -> str:
    """Returns the card of a fine-tuned model; `figures` are measured on the dev examples.

    `pipeline` is the task's name in `transformers`, None if there is no pipeline for it;
    `comparison` a table of teacher and student, its titles first.
    """
    sections = [
        _header(pipeline),
        f"# {markdown_text(name)}\n\n{summary}",
        f"## Data\n\n{_table(('', 'Value'), data)}",
        f"## Recipe\n\n{_table(('', 'Value'), recipe)}",
        f"## Metrics on the dev examples\n\n{_table(('', 'Value'), _readable(figures))}",
        *_compared(comparison),
        _loading(pipeline, None),
    ]
    return _finished(sections, lineage)


def _header(pipeline: str | None) -> str:
    header: dict[str, object] = {"library_name": "transformers"}
    if pipeline is not None:
        header["pipeline_tag"] = pipeline
    header["tags"] = ["bert", "bertline"]
    return f"---\n{yaml.safe_dump(header, sort_keys=False)}---"


def _finished(sections: list[str], lineage: Mapping[str, object]) -> str:
    ends = [
        f"## Lineage\n\n{_table(('', 'Value'), lineage)}",
        f"## Licence\n\n{LICENCE_NOTE}",
    ]
    return without_machine_paths("\n\n".join([*sections, *ends]) + "\n")


def _figures(figures: Mapping[str, float], baseline: Mapping[str, float], kind: str) -> str:
    rows = [
        (name, _written(value), _written(baseline[name]) if name in baseline else "")
        for name, value in figures.items()
    ]
    explanation = (
        f"The unigram baseline predicts every {kind} token by its frequency in the training text: "
        "a model with better values uses the context."
    )
    return f"{_rows(('', 'This model', 'Unigram baseline'), rows)}\n\n{explanation}"


def _readable(figures: Mapping[str, float]) -> dict[str, float]:
    return {readable_metric(name): value for name, value in figures.items()}


def _table(titles: tuple[str, str], entries: Mapping[str, object]) -> str:
    return _rows(
        titles, [(markdown_text(name), _written(value)) for name, value in entries.items()]
    )


def _compared(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The section of teacher and student, nothing where there is no teacher."""
    if not rows:
        return []
    head, *models = [tuple(map(markdown_text, row)) for row in rows]
    text = "Scores with 95 % intervals, the difference paired; latency of the machine that trained."
    return [f"## Teacher and student\n\n{_rows(head, models)}\n\n{text}"]


def _rows(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    separator = ("---",) + ("---:",) * (len(titles) - 1) if len(titles) > 2 else ("---", "---")
    lines = [f"| {' | '.join(cells)} |" for cells in (titles, separator, *rows)]
    return "\n".join(lines)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return markdown_text(str(value))


def _loading(pipeline: str | None, sentence: str | None) -> str:
    if pipeline is None:
        return _LOADING
    call = f'{pipeline.replace("-", "_")} = pipeline("{pipeline}", model="MODEL_FOLDER")'
    example = f'\n{pipeline.replace("-", "_")}("{sentence}")' if sentence else ""
    snippet = f"```python\nfrom transformers import pipeline\n\n{call}{example}\n```"
    return f"{_LOADING}\n\nWith `transformers`:\n\n{snippet}"


_LOADING = """## How to load

The folder has Hugging Face's layout. With Bertline's core, which needs PyTorch but not
`transformers`:

```python
from bert_core.model_folder import load_model_folder

config, model, tokenizer = load_model_folder("MODEL_FOLDER")
```"""
