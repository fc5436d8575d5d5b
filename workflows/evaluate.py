"""Evaluates a fine-tuned model: `python workflows/evaluate.py --help`.

It prints metrics with intervals and writes slices, calibration and mistakes as a report.
--suite reproduces a part of the paper instead (`workflows.paper`): the GLUE table of a folder of
models, Table 7 of an encoder, or pictures of an encoder.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.errors import UserError, nearest
from workflows.command import command
from workflows.evaluation.settings import EvaluateSettings
from workflows.settings import given_option, parse_command_line

if TYPE_CHECKING:
    from bert_core.predictor import Predictor
    from workflows.evaluation.report import EvaluationReport

# Imports within functions load torch, which takes seconds: --help is answered before.

PREDICTION_SUFFIXES = (".jsonl", ".parquet")

OF_ANSWERS = ("report", "compare", "slice_by", "checks")
"""The settings that need right answers."""


main = command(lambda given: suite_of(given)(given))


def suite_of(given: Sequence[str]) -> Callable[[Sequence[str]], bool]:
    """What --suite, or its absence, asks for; raises `UserError` for one that there is not."""
    name = given_option(given, "suite")
    if name is None:
        return run_models
    if name not in SUITES:
        known = f"there are {', '.join(SUITES)}"
        raise UserError(f"unknown suite{nearest(name, SUITES)}", f"--suite {name}", known)
    return SUITES[name]


def run_models(arguments: Sequence[str]) -> bool:
    """Measures one model, or those of the GLUE table; True when it is done."""
    return run(parse_command_line(EvaluateSettings, arguments))


def run_table7(arguments: Sequence[str]) -> bool:
    """Trains and measures the rows of Table 7; True when it is done."""
    from workflows.paper.suite_settings import Table7Settings

    settings = parse_command_line(Table7Settings, arguments)
    from workflows.paper.table7 import measure_table7

    return measure_table7(settings)


def run_pictures(arguments: Sequence[str]) -> bool:
    """Draws what an encoder has learned; True when it is done."""
    from workflows.paper.suite_settings import PicturesSettings

    settings = parse_command_line(PicturesSettings, arguments)
    from workflows.paper.pictures import draw_pictures

    return draw_pictures(settings)


SUITES = {"glue": run_models, "table7": run_table7, "pictures": run_pictures}
"""The suites by name. Those of an encoder have options of their own."""


def run(settings: EvaluateSettings) -> bool:
    """Measures one model, or those of a suite; True when it is done."""
    if settings.suite is None:
        return evaluate(settings)
    from workflows.paper.glue import evaluate_glue

    return evaluate_glue(settings)


def evaluate(settings: EvaluateSettings) -> bool:
    """Measures the model and writes what is asked for; True when it is done.

    Raises `UserError` for wrong settings or data.
    """
    from bert_core.evaluation.outcomes import (
        prediction_records,
        refuse_unknown_file,
        write_for_scorers,
        write_predictions,
    )
    from bert_core.tasks.encoded_rows import tally_text
    from bert_core.tasks.task import has_answer
    from workflows.evaluation.report import summary_lines, write_report
    from workflows.finetuning.data import located, refuse_no_answer
    from workflows.progress import share_line

    if settings.output is not None:
        refuse_unknown_file(settings.output)
        refuse_overwriting(settings, settings.output)
    predictor = open_predictor(settings, settings.model)
    if settings.task is not None and settings.task != predictor.task_name:
        raise UserError(
            f"a model of the task {predictor.task_name}",
            settings.model,
            f"leave --task {settings.task} out, or give another model",
        )
    task = predictor.task
    if settings.output is not None:
        refuse_unknown_file(settings.output, task)
    examples = list(task.examples(located(settings.data), settings.split))
    labelled = [index for index, each in enumerate(examples) if has_answer(each)]
    asked = [name for name in OF_ANSWERS if getattr(settings, name)]
    if settings.output is None:
        refuse_no_answer(task, examples, settings.data, settings.split)
    elif asked and not labelled:
        remedy = "leave it out, or give data with answers"
        raise UserError(f"no example of {settings.data} has an answer", f"--{asked[0]}", remedy)
    shown = share_line(f"predicting {len(examples):,} examples")
    predictions, rows = predictor.predict_examples(
        examples, max_tokens=settings.max_tokens, progress=shown
    )
    if settings.output is not None and settings.output.suffix in PREDICTION_SUFFIXES:
        write_predictions(prediction_records(task, predictions, examples), settings.output)
    elif settings.output is not None:
        write_for_scorers(predictions, examples, settings.output)
    print(f"task     {predictor.task_name}")
    print(f"data     {len(examples):,} examples, {len(labelled):,} with answers")
    tally = rows.tally | task.unanswered(examples)
    print(f"length   {tally_text(tally)}")
    if not labelled:
        print(f"written  {settings.output}")
        return True
    report = measured(settings, predictor, predictions, examples, labelled)
    report = replace(report, tally=tally)
    print("\n".join(summary_lines(report)))
    if settings.report is not None:
        write_report(report, settings.report)
        print(f"report   {settings.report / 'report.md'}")
    if settings.output is not None:
        print(f"written  {settings.output}")
    return True


def refuse_overwriting(settings: EvaluateSettings, output: Path) -> None:
    """Raises `UserError` where the predictions would replace a file that the evaluation reads."""
    written = output.resolve()
    for name in ("data", "compare"):
        read = Path(getattr(settings, name) or "").expanduser().resolve()
        if written == read or (name == "data" and written.parent == read and written.exists()):
            what = f"this would overwrite what --{name} reads"
            raise UserError(what, f"--output {output}", "write to another file")


def open_predictor(settings: EvaluateSettings, model: str) -> "Predictor":
    """Opens the fine-tuned model, with task options for this data."""
    from bert_core.predictor import load_predictor
    from workflows.evaluation.settings import with_options
    from workflows.model_location import locate_model

    folder = locate_model(model, settings.storage_folder, settings.mlflow_uri)
    predictor = load_predictor(folder, task_name=settings.task)
    positions = predictor.model.config.max_position_embeddings
    task = with_options(predictor.task, settings.options, positions)
    return replace(predictor, fine_tuned_for=task)


def measured(
    settings: EvaluateSettings,
    predictor: "Predictor",
    predictions: Sequence[Mapping[str, Any]],
    examples: Sequence[Any],
    labelled: Sequence[int],
) -> "EvaluationReport":
    """The report on labelled examples, with a comparison if another model is given."""
    from bert_core.evaluation.intervals import compare
    from bert_core.evaluation.outcomes import resampling_units
    from workflows.evaluation.report import evaluation_report

    task = predictor.task
    known = [examples[index] for index in labelled]
    mine = [predictions[index] for index in labelled]
    report = evaluation_report(
        task,
        mine,
        known,
        title=f"{predictor.task_name}: {Path(settings.model).name} on {Path(settings.data).name}",
        slice_by=settings.slice_by,
        num_resamples=settings.num_resamples,
        seed=settings.seed,
    )
    if settings.compare is not None:
        other = other_predictions(settings, settings.compare, predictor, examples, predictions)
        comparison = compare(
            task,
            [other[index] for index in labelled],
            mine,
            known,
            num_resamples=settings.num_resamples,
            seed=settings.seed,
            groups=resampling_units(known),
        )
        report = replace(report, comparison=comparison)
    if settings.checks is not None:
        report = replace(report, checks=checked(settings, settings.checks, predictor, known))
    return report


def other_predictions(
    settings: EvaluateSettings,
    compare: str,
    predictor: "Predictor",
    examples: Sequence[Any],
    own: Sequence[Mapping[str, Any]],
) -> Sequence[Mapping[str, Any]]:
    """The predictions of the other model, the first of the two in the comparison.

    Raises `UserError` where they answer another question than the `own` predictions of this model.
    """
    from bert_core.evaluation.outcomes import read_predictions
    from workflows.progress import share_line

    path = Path(compare).expanduser()
    if path.suffix in PREDICTION_SUFFIXES:
        return read_predictions(path, predictor.task, examples, own)
    other = open_predictor(settings, compare)
    mine, theirs = (
        (type(task), getattr(task, "kind", None), {*task.labels})
        for task in (predictor.task, other.task)
    )
    if mine != theirs:
        raise UserError("the two models answer different questions", compare, "compare like models")
    shown = share_line(f"predicting them by {compare}")
    return other.predict_examples(examples, max_tokens=settings.max_tokens, progress=shown)[0]


def checked(
    settings: EvaluateSettings, path: Path, predictor: "Predictor", examples: Sequence[Any]
) -> list[Any]:
    """The results of the behavioural checks of a file."""
    from bert_core.evaluation.behaviour import run_suite
    from bert_core.evaluation.behaviour_suite import read_suite
    from bert_core.tasks.classification import Classification

    if not isinstance(predictor.task, Classification):
        raise UserError(
            "behavioural checks are for classification", str(path), "leave --checks out"
        )
    return run_suite(
        read_suite(path),
        lambda texts: predictor.predict_examples(texts, max_tokens=settings.max_tokens)[0],
        examples,
        labels=predictor.task.labels,
        seed=settings.seed,
    )


if __name__ == "__main__":
    sys.exit(main())
