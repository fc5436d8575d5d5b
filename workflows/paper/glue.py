"""The GLUE suite: figures of fine-tuned models on the dev sets, next to table 1 of the paper.

The task of a model is the one in its config.json, whatever its folder is called. If a task has
several models, the one with the best dev figure counts, as in the paper.
"""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bert_core.disk import write_atomically
from bert_core.errors import UserError
from bert_core.evaluation.intervals import Interval, bootstrap_intervals
from bert_core.model_folder import CONFIG, ModelFolderError
from bert_core.predictor import Predictor, load_predictor
from bert_core.strict_files import read_json_object
from bert_core.tasks.catalog import CONFIG_FIELD, GLUE
from bert_core.tasks.classification import Text
from bert_core.tasks.encoded_rows import tally_text
from bert_core.tasks.tables import TaskDataError
from workflows.evaluation.settings import EvaluateSettings
from workflows.finetuning.data import answered_examples
from workflows.model_location import model_name
from workflows.paper.published import COLUMNS, DASH, GLUE_TEST, PAPER_AVERAGES, Column
from workflows.reporting.render import Cell, Page, Row, Section, Table, terminal_table, write_page
from workflows.runs.folder import is_name_aside

TITLE_WIDTH = 9


@dataclass(frozen=True)
class Measured:
    """The figure of a model on a dev set, in 0..1; the best of `num_models`."""

    figure: Interval
    model: str
    num_examples: int
    num_truncated: int
    num_models: int = 1


@dataclass(frozen=True)
class GlueRow:
    """Figures by column, in points (0..100), and what they were measured on.

    `behind` has by column the measurement behind a figure, or the reason why there is none.
    """

    name: str
    measured_on: str
    figures: Mapping[str, Interval | float]
    behind: Mapping[str, Measured | str] = field(default_factory=dict)

    def average(self, columns: Sequence[str]) -> float | None:
        """The mean over these columns; None of none."""
        if not columns:
            return None
        return sum(_value(self.figures[name]) for name in columns) / len(columns)


PAPER_ROWS = tuple(GlueRow(name, "test", figures) for name, figures in GLUE_TEST.items())


@dataclass(frozen=True)
class GlueTable:
    """The rows of the table; `averaged` are the columns that all of them have."""

    rows: tuple[GlueRow, ...]
    averaged: tuple[str, ...]

    @property
    def ours(self) -> tuple[GlueRow, ...]:
        """The rows that are not the paper's."""
        return self.rows[len(PAPER_ROWS) :]

    @property
    def notes(self) -> list[str]:
        """Notes needed to compare the rows."""
        paper = " and ".join(f"{value} ({name})" for name, value in PAPER_AVERAGES.items())
        titles = ", ".join(COLUMNS[name].title for name in self.averaged)
        averages = (
            f"Averages: the plain mean over {len(self.averaged)} of 9 columns ({titles}) for every"
            " model, so that averages can be compared."
            if self.averaged
            else "No averages: no column has a figure of every model."
        )
        notes = [
            "Figures of Devlin et al. 2018 (table 1) are of the test sets, scored by the GLUE"
            " server. Ours are of the dev sets and usually a little higher than on test sets,"
            " more so where the best epoch was chosen on them.",
            f"Points, 0{DASH}100. A dash: no data, or no model. WNLI is left out, as in the paper.",
            f"{averages} Over all nine, MNLI-m and MNLI-mm as two, the paper has {paper}.",
            "In brackets: 95 % bootstrap intervals over the dev examples.",
        ]
        measured = [each for row in self.ours for each in row.behind.values()]
        if any(isinstance(each, Measured) and each.num_models > 1 for each in measured):
            notes.append(
                "If a task has several models, the table has the one that does best on the same dev"
                " set (MNLI: the matched one), which flatters its figure."
            )
        return notes


def evaluate_glue(settings: EvaluateSettings) -> bool:
    """Measures the models, prints the table and writes the report; returns True.

    A task without data or without a model gets a dash and a reason. Raises `UserError` for damaged
    files, and if there is nothing to measure.
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
    print(f"\n{terminal_table(report_table(table))}")
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
    """Returns the figures of a task's best model by column, and prints those of every model.

    The first dev set decides; ties go to the first model.
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
    """Measures a model on a dev set by GLUE's metric, not by the one it was tuned for."""
    start = time.monotonic()
    print(f"{column.title:{TITLE_WIDTH}}{model}, {len(examples):,} examples: ", end="", flush=True)
    outcome = "not measured"
    try:
        predictions, rows = predictor.predict_examples(examples, max_tokens=settings.max_tokens)
        figure = bootstrap_intervals(
            GLUE[column.task],
            predictions,
            examples,
            num_resamples=settings.num_resamples,
            seed=settings.seed,
        )[column.metric]
        outcome = (
            f"{column.metric_title} {figure_text(in_points(figure))}, "
            f"{rows.num_truncated:,} truncated, {time.monotonic() - start:.0f} s"
        )
    finally:
        print(outcome, flush=True)
    return Measured(figure, model, len(examples), rows.num_truncated)


def write_table(table: GlueTable, folder: Path) -> None:
    """Writes glue.md, glue.html and glue.json into a folder, each atomically."""
    write_page(glue_page(table), folder, "glue")
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
    return dict.fromkeys(COLUMNS[name].task for name in columns)


def _why_not(*, has_data: bool, has_model: bool) -> str:
    lacking = [] if has_data else ["no data"]
    return ", ".join(lacking if has_model else [*lacking, "no model"])


def _task_named_in(path: Path) -> str | None:
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


def glue_table(ours: Mapping[str, Mapping[str, Measured | str]]) -> GlueTable:
    """The paper's rows and ours.

    `ours` has, by the name of a row, what was measured by column (a key of COLUMNS), or the reason
    for a dash; a column that is left out gets a dash too. Averages are taken over the columns that
    all of the rows have.
    """
    rows = [
        GlueRow(
            name,
            "dev",
            {key: in_points(m.figure) for key, m in behind.items() if isinstance(m, Measured)},
            behind,
        )
        for name, behind in ours.items()
    ]
    averaged = tuple(name for name in COLUMNS if all(name in row.figures for row in rows))
    return GlueTable((*PAPER_ROWS, *rows), averaged)


def report_table(table: GlueTable) -> Table:
    """The table with a line per column of the paper's and one for averages, and its notes."""

    def line(title: str, metric: str, figures: Sequence[Interval | float | None]) -> list[Cell]:
        cells = [
            Cell(figure_text(figure), None if figure is None else _value(figure))
            for figure in figures
        ]
        return [Cell(title), Cell(metric), *cells]

    rows = [
        Row(line(column.title, column.metric_title, [row.figures.get(name) for row in table.rows]))
        for name, column in COLUMNS.items()
    ]
    averages = [row.average(table.averaged) for row in table.rows]
    rows.append(Row(line("average", f"of {len(table.averaged)}", averages), highlighted=True))
    heads = ["task", "metric", *(f"{row.name}, {row.measured_on}" for row in table.rows)]
    return Table("Points with 95 % intervals", heads, rows, table.notes)


def glue_page(table: GlueTable) -> Page:
    """The table and the models behind our figures as a page."""
    averages = [f"{row.name} {figure_text(row.average(table.averaged))}" for row in table.rows]
    verdict = f"Average of {len(table.averaged)} columns: {', '.join(reversed(averages))}"
    if not table.averaged:
        verdict = "No average: no column has a figure of every model"
    models = [
        Section(f"Models behind {row.name}", [Table("Models", MODEL_HEADS, _model_rows(row))])
        for row in table.ours
    ]
    return Page("GLUE", verdict, sections=[Section("Figures", [report_table(table)]), *models])


def json_table(table: GlueTable) -> str:
    """The table as JSON: columns, rows with values and intervals, averages, notes."""
    rows = [
        {
            "name": row.name,
            "measured_on": row.measured_on,
            "figures": {name: _json_figure(row, name) for name in COLUMNS},
            "average": row.average(table.averaged),
            "average_of_all_columns": PAPER_AVERAGES.get(row.name) if row in PAPER_ROWS else None,
            "missing": {name: why for name, why in row.behind.items() if isinstance(why, str)},
        }
        for row in table.rows
    ]
    columns = {
        name: {"title": column.title, "metric": column.metric} for name, column in COLUMNS.items()
    }
    content = {
        "unit": "points, 0-100",
        "columns": columns,
        "rows": rows,
        "averaged_columns": table.averaged,
        "notes": table.notes,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


MODEL_HEADS = ("task", "model", "dev examples", "truncated")


def _model_rows(row: GlueRow) -> list[Row]:
    """For each column the model or why there is none, its examples, the truncated ones."""
    rows = []
    for name, column in COLUMNS.items():
        found = row.behind.get(name, "")
        if isinstance(found, str):
            rows.append(Row([column.title, f"{DASH} {found}".rstrip(), "", ""]))
            continue
        best = f" (best of {found.num_models})" if found.num_models > 1 else ""
        counts = [Cell(f"{each:,}", each) for each in (found.num_examples, found.num_truncated)]
        rows.append(Row([column.title, found.model + best, *counts]))
    return rows


def figure_text(figure: Interval | float | None) -> str:
    """A figure in points with its interval, unless degenerate; a dash for none."""
    if figure is None:
        return DASH
    return figure.text(".1f") if isinstance(figure, Interval) else f"{figure:.1f}"


def in_points(figure: Interval) -> Interval:
    """Converts a figure of 0..1 to points."""
    return Interval(100 * figure.value, 100 * figure.low, 100 * figure.high)


def _value(figure: Interval | float) -> float:
    return figure.value if isinstance(figure, Interval) else figure


def _json_figure(row: GlueRow, name: str) -> dict[str, Any] | None:
    figure, behind = row.figures.get(name), row.behind.get(name)
    if figure is None:
        return None
    if not isinstance(figure, Interval) or not isinstance(behind, Measured):
        return {"value": figure}
    details = {key: value for key, value in vars(behind).items() if key != "figure"}
    return {**vars(figure), **details}
