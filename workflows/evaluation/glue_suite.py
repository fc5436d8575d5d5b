"""The GLUE suite: GLUE's data and a folder of fine-tuned models go in; the paper's table comes out.

A model is one of the task that its config.json names, whatever its folder is called. Of several
models of a task the one that does best on the dev set counts, as the paper chose its own.
"""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bert_core.errors import UserError
from bert_core.evaluation.bootstrap import bootstrap_intervals
from bert_core.evaluation.glue_page import html_page
from bert_core.evaluation.glue_table import (
    COLUMNS,
    DASH,
    Column,
    GlueTable,
    Measured,
    glue_table,
    in_points,
    in_words,
    json_table,
    markdown_table,
    text_table,
)
from bert_core.model_folder import CONFIG, ModelFolderError
from bert_core.predictor import Predictor, load_predictor
from bert_core.strict_json import read_json_object
from bert_core.tasks.catalog import CONFIG_FIELD
from bert_core.tasks.classification import Text
from bert_core.tasks.encoded_rows import tally_text
from bert_core.tasks.glue import GLUE
from bert_core.tasks.tables import TaskDataError
from workflows.evaluation.settings import EvaluateSettings
from workflows.finetuning.data import answered_examples
from workflows.model_location import model_name
from workflows.run_folder import is_name_aside, write_atomically

TITLE_WIDTH = 9


def evaluate_glue(settings: EvaluateSettings) -> bool:
    """Measures the models, prints the table and writes it where asked for; True when it is done.

    A task without data or without a model gets a dash, and the reason is told. Raises `UserError`
    for what is damaged, and where there is nothing to measure.
    """
    assert settings.model_root is not None  # as the settings have it
    root, data = settings.model_root.expanduser(), Path(settings.data).expanduser()
    models, dev_sets = find_models(root), read_dev_sets(data)
    _announce(models, dev_sets, root, data)
    results: dict[str, Measured | str] = {}
    for task in _tasks(COLUMNS):
        measurable = {}
        for name, column in COLUMNS.items():
            if column.task != task:
                continue
            why = _why_not(has_data=name in dev_sets, has_model=task in models)
            if why:
                results[name] = why
                print(f"{column.title:{TITLE_WIDTH}}{DASH} {why}")
            else:
                measurable[name] = dev_sets[name]
        if measurable:
            results |= measure_best(task, models[task], measurable, settings)
    table = glue_table({root.resolve().name: results})
    print(f"\n{text_table(table)}")
    if settings.report is not None:
        write_table(table, settings.report)
        print(f"report   {settings.report / 'glue.html'}, glue.md, glue.json")
    return True


def find_models(root: Path) -> dict[str, list[Path]]:
    """The model folders of each task of GLUE: `<root>/NAME` or `<root>/NAME/model`, by name.

    Models of other tasks, and runs that were set aside, are left out.
    """
    if not root.is_dir():
        raise UserError("no such folder", str(root), "check --model_root")
    found: dict[str, list[Path]] = {}
    for path in sorted([*root.glob(f"*/{CONFIG}"), *root.glob(f"*/model/{CONFIG}")]):
        name = path.relative_to(root).parts[0]
        if name.startswith(".") or is_name_aside(name):
            continue
        task = _task_named_in(path)
        if task in GLUE:
            found.setdefault(task, []).append(path.parent)
    if not found:
        raise UserError(
            "no fine-tuned model of a task of GLUE",
            str(root),
            "give the folder that their folders, or their runs' folders, lie in",
        )
    return found


def read_dev_sets(folder: Path) -> dict[str, Sequence[Text]]:
    """The examples with answers of each column of the table whose file is there.

    Tasks' folders may be written in any case, with and without hyphens. Raises `UserError` for a
    file that is damaged or has no answers, and where there is none at all.
    """
    if not folder.is_dir():
        raise TaskDataError("no such folder", str(folder), "check --data")
    folders: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        task = _task_called(path.name)
        if task not in GLUE or not path.is_dir():
            continue
        if task in folders:
            both = f"{folders[task]}, {path}"
            raise TaskDataError(f"two folders of the task {task}", both, "keep one")
        folders[task] = path
    found: dict[str, Sequence[Text]] = {}
    for name, column in COLUMNS.items():
        of_task = folders.get(column.task)
        if of_task is None or not any(of_task.glob(f"{column.split}.*")):
            continue
        task, split = GLUE[column.task], column.split
        found[name], unanswered = answered_examples(task, str(of_task), split)
        if unanswered:
            print(f"left out of {name}: {tally_text(unanswered)}", file=sys.stderr)
    if not found:
        raise TaskDataError(
            "no dev set of a task of GLUE",
            str(folder),
            "give the folder of CoLA/dev.tsv, MNLI/dev_matched.tsv, … as GLUE's download has them",
        )
    return found


def measure_best(
    task: str,
    folders: Sequence[Path],
    dev_sets: Mapping[str, Sequence[Text]],
    settings: EvaluateSettings,
) -> dict[str, Measured]:
    """What the best model of a task reaches on its dev sets, by column; prints each model's.

    The first dev set decides, and among equals the first model.
    """
    best: dict[str, Measured] = {}
    deciding = next(iter(dev_sets))
    for folder in folders:
        predictor = load_predictor(folder)
        _refuse_other_answers(task, predictor, folder)
        found = {
            name: measure(COLUMNS[name], predictor, model_name(folder), examples, settings)
            for name, examples in dev_sets.items()
        }
        if not best or found[deciding].figure.value > best[deciding].figure.value:
            best = found
    return {name: replace(each, num_models=len(folders)) for name, each in best.items()}


def measure(
    column: Column,
    predictor: Predictor,
    model: str,
    examples: Sequence[Text],
    settings: EvaluateSettings,
) -> Measured:
    """What a model reaches on a dev set, by GLUE's own metric whatever the model was tuned for."""
    start = time.monotonic()
    print(f"{column.title:{TITLE_WIDTH}}{model}, {len(examples):,} examples: ", end="", flush=True)
    outcome = "not measured"
    try:
        predictions, rows = predictor.predict(examples, max_tokens=settings.max_tokens)
        figure = bootstrap_intervals(
            GLUE[column.task],
            predictions,
            examples,
            num_resamples=settings.num_resamples,
            seed=settings.seed,
        )[column.metric]
        outcome = (
            f"{column.metric_title} {in_words(in_points(figure))}, "
            f"{rows.num_truncated:,} truncated, {time.monotonic() - start:.0f} s"
        )
    finally:
        print(outcome, flush=True)
    return Measured(figure, model, len(examples), rows.num_truncated)


def write_table(table: GlueTable, folder: Path) -> None:
    """Writes glue.md, glue.html and glue.json into a folder, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "glue.md", markdown_table(table))
    write_atomically(folder / "glue.html", html_page(table))
    write_atomically(folder / "glue.json", json_table(table))


def _announce(
    models: Mapping[str, Sequence[Path]], dev_sets: Mapping[str, object], root: Path, data: Path
) -> None:
    """Prints what there is to measure; raises `UserError` where models and data do not meet."""
    with_data = _tasks(dev_sets)
    of_models, of_data = ", ".join(models), ", ".join(with_data)
    if not models.keys() & with_data.keys():
        raise UserError(
            "no task has both data and a model",
            f"data of {of_data} in {data}, models of {of_models} in {root}",
            "add the one or the other",
        )
    print(f"models   {sum(map(len, models.values())):,}, of {of_models}")
    print(f"data     {of_data}")
    if "wnli" in models:
        print("WNLI     left out, as in the paper")


def _tasks(columns: Iterable[str]) -> dict[str, None]:
    """The tasks of columns, each once, in their order."""
    return dict.fromkeys(COLUMNS[name].task for name in columns)


def _why_not(*, has_data: bool, has_model: bool) -> str:
    """Why nothing is measured; empty where something is."""
    lacking = [] if has_data else ["no data"]
    return ", ".join(lacking if has_model else [*lacking, "no model"])


def _task_named_in(path: Path) -> str | None:
    """The task that a config.json names; None where it names none."""
    described = read_json_object(path, error=ModelFolderError).get(CONFIG_FIELD)
    return described.get("name") if isinstance(described, dict) else None


def _task_called(folder: str) -> str:
    """The name of a task, `sst2`, from that of its folder, `SST-2`."""
    return "".join(filter(str.isalnum, folder.lower()))


def _refuse_other_answers(task: str, predictor: Predictor, folder: Path) -> None:
    known, wanted = predictor.task, GLUE[task]
    assert isinstance(known, type(wanted))
    if (known.kind, set(known.labels)) != (wanted.kind, set(wanted.labels)):
        answers = ", ".join(wanted.labels) or "a number"
        raise UserError(
            f"a model of {task} with other answers than GLUE's, which are {answers}",
            str(folder),
            "fine-tune it on GLUE's files",
        )
