"""Predictions for texts: `python workflows/predict.py --model MODEL --input PATH… --output DIR`.

Killed at any moment, the same command finishes the rest, and no row is lost or there twice.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workflows.command import command
from workflows.inference.predict_settings import PredictSettings
from workflows.inference.text_parts import OF_ONE_START, TextInput, find_input, gathered, left_out
from workflows.model_location import locate_model, model_hash
from workflows.output_folder import files_hash
from workflows.settings import parse_command_line

if TYPE_CHECKING:
    from bert_core.predictor import Predictor

# Imports within functions load torch or Ray, which takes seconds: --help is answered before.

_COUNTS = ("texts", "tokens", "windows", "truncated", "found")
_NAMES_SHOWN = 10


def predict(settings: PredictSettings) -> Path:
    """Predicts, or finishes it, or finds it finished; returns the folder of the predictions.

    Raises `UserError`, before anything is written, for input that the user can fix.
    """
    folder, predictor = _open(settings)
    from workflows.inference.prediction import Prediction, request_of
    from workflows.inference.text_parts import run_job

    request = request_of(settings, predictor)
    given = find_input(settings, request.columns)
    plan = {
        "settings": settings.model_dump(mode="json", exclude={*OF_ONE_START}),
        "model": model_hash(folder, predictor.tokenizer),
        "files_sha256": files_hash(given.found).hexdigest(),
    }
    described = {
        "task": predictor.task_name,
        "labels": list(predictor.task.labels),
        "gives": request.kind,
    }
    del predictor  # its memory is for the workers
    return run_job(
        settings,
        plan,
        given,
        lambda work: Prediction(
            work=work,
            parts=given.parts,
            model=folder,
            task_name=settings.task,
            request=request,
            output_format=settings.format,
            **settings.of_job(),
        ),
        index_of=lambda records: _index(settings, records, given) | described,
        describe=describe,
    )


def _open(settings: PredictSettings) -> "tuple[Path, Predictor]":
    from bert_core.predictor import load_predictor

    folder = locate_model(settings.model, settings.storage_folder, settings.mlflow_uri)
    return folder.absolute(), load_predictor(folder, task_name=settings.task)


def _index(
    settings: PredictSettings,
    records: Sequence[Mapping[str, Any]],
    given: TextInput,
) -> dict[str, Any]:
    found: Counter[str] = Counter()
    for record in records:
        found += Counter(record.get("found", {}))
    values = [each["values"] for each in records if each.get("values")]
    of_all = gathered(records, given)
    of_all["counts"] = dict.fromkeys(_COUNTS, 0) | of_all["counts"]
    lows, highs, sums = zip(*values, strict=True) if values else ((), (), ())
    return {
        "model": Path(settings.model).name,
        "format": settings.format,
        "overflow": settings.overflow,
        "found": dict(found),
        "values": {"low": min(lows), "high": max(highs), "sum": sum(sums)} if values else None,
        **of_all,
    }


def describe(index: Mapping[str, Any]) -> list[str]:
    """The lines of the summary: what was read, what was found in it, and all that was dropped."""
    counts = Counter(index["counts"])
    return [
        f"{counts['texts']:,} texts of {counts['tokens']:,} tokens ({counts['windows']:,} more"
        f" windows of long texts; {counts['truncated']:,} texts are cut)",
        _found(index, counts),
        *left_out(index),
    ]


def _found(index: Mapping[str, Any], counts: Counter[str]) -> str:
    num_texts, found = counts["texts"], Counter(index["found"])
    with_any = f"in {counts['found']:,} of {num_texts:,} texts"
    match index["gives"]:
        case "value":
            values = index["values"]
            mean = values["sum"] / num_texts
            return f"values from {values['low']:.4g} to {values['high']:.4g}, {mean:.4g} on average"
        case "answers":
            return f"answers {with_any}"
        case "entities":
            return f"{found.total():,} entities {with_any}{_listed(': ', found)}"
        case "labels":
            return f"{found.total():,} labels {with_any}{_listed(': ', found, num_texts)}"
        case _:
            return f"labels{_listed(': ', found, num_texts)}"


def _listed(before: str, found: Counter[str], num_texts: int | None = None) -> str:
    """The names, most frequent first, with their counts and shares of the texts."""
    shown = [
        f"{name} {count:,}" + (f" ({count / num_texts:.1%})" if num_texts else "")
        for name, count in sorted(found.items(), key=lambda each: (-each[1], each[0]))
    ]
    if len(shown) > _NAMES_SHOWN:
        shown[_NAMES_SHOWN:] = [f"{len(shown) - _NAMES_SHOWN:,} more (index.json has them)"]
    return before + ", ".join(shown) if shown else ""


main = command(lambda given: bool(predict(parse_command_line(PredictSettings, given))))


if __name__ == "__main__":
    sys.exit(main())
