"""The Table 7 suite: NER with a fine-tuned encoder and with its features, next to the paper.

Every seed of every row is a run of `workflows/finetune.py`; the runs of a seed share workers.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file

from bert_core.disk import write_atomically
from bert_core.errors import UserError
from bert_core.model.strategies import STRATEGIES, find_strategy, single_layer
from bert_core.predictor import load_predictor
from bert_core.settings import FinetuningOptimizerSettings
from bert_core.strict_files import read_json_object
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import has_answer
from workflows.finetune import opened_job
from workflows.finetuning.data import located
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.results import write_results
from workflows.finetuning.settings import (
    FeatureOptimizerSettings,
    FinetuneTrackingSettings,
    TaskRunSettings,
    settings_class,
)
from workflows.finetuning.worker import BEST_WEIGHTS
from workflows.model_location import EncoderFolder, model_name, open_encoder
from workflows.paper.published import (
    DASH,
    FINETUNING,
    TABLE_7_DEV,
    TABLE_7_TEST,
    TABLE_7_TITLES,
    score_text,
)
from workflows.paper.suite_settings import Table7Settings
from workflows.reporting.figures import (
    BLUE,
    DASHED,
    GREY,
    INK,
    RED,
    Figure,
    new_figure,
    saved_figure,
    set_title,
    tidy,
)
from workflows.reporting.render import (
    Cell,
    Figures,
    Page,
    Row,
    Section,
    Table,
    terminal_table,
    write_page,
)
from workflows.runs.mlflow_run import log_report
from workflows.runs.storage import Storage, open_storage
from workflows.training.job import train_and_register
from workflows.training.run_settings import CheckpointSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

EXPERIMENT = "table7"
"""At MLflow: of the runs, and of the table with its pictures."""
REPORT, PAGE = "table7.md", "table7.html"
F1_BY_LAYER, LAYER_WEIGHTS = "f1_by_layer.png", "layer_weights.png"
RESULT = "table7.json"
"""In the folder of each run: what it came to, so that a finished run is not opened again."""
_NOT_OF_THE_TABLE = {"suite", "report", "cluster", "storage", "tracking_uri", "profile"}


@dataclass(frozen=True)
class SeedScores:
    """F1 in points, one figure for each seed."""

    dev: Sequence[float]
    test: Sequence[float] = ()


@dataclass(frozen=True)
class Table7:
    """Scores by row, with notes.

    `encoder` and `recipe` are sentences; rows that were not measured have a dash.
    """

    encoder: str
    recipe: str
    rows: Mapping[str, SeedScores]

    @property
    def order(self) -> list[str]:
        """Our strategies from the best to the worst, by their mean on dev."""
        measured = [name for name in TABLE_7_TITLES if name != FINETUNING and name in self.rows]
        return sorted(measured, key=lambda name: -mean(self.rows[name].dev))

    @property
    def notes(self) -> list[str]:
        """Notes needed to compare the columns."""
        paper = sorted(TABLE_7_DEV, key=lambda name: -TABLE_7_DEV[name])
        order = [name for name in paper if name in self.order]
        return [
            self.encoder,
            self.recipe,
            "The paper's column: BERT base, cased (12 layers, 768 wide), a BiLSTM 768 wide,"
            " document context, averages of five seeds.",
            "F1 of entities in points; ours are the mean over seeds and, after ±, their standard"
            " deviation. Dev figures are those of the best epoch on dev.",
            f"Order of the strategies here: {_order(self.order)}; in the paper: {_order(order)}.",
        ]


def _order(names: Sequence[str]) -> str:
    return " > ".join(names) or "none"


def measure_table7(settings: Table7Settings) -> bool:
    """Trains the missing runs, prints and writes the table; returns False if it was stopped.

    Raises `UserError` for wrong settings or data.
    """
    storage = open_storage(settings.storage)
    encoder = open_encoder(settings.model, storage.folder, settings.mlflow_uri)
    names = rows_to_measure(settings, encoder.config.num_hidden_layers)
    print(f"encoder  {encoder.path}")
    print(f"runs     {len(names)} rows and layers of {settings.seeds} seeds: {', '.join(names)}")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in range(settings.seeds):
        results = measure_seed(settings, storage, names, seed)
        if results is None:
            return False
        for name, result in results.items():
            found[name].append(result)
        table = report_table(table_of(settings, encoder, found))
        print(terminal_table(table), flush=True)
    with ExitStack() as opened:
        folder = settings.report or Path(opened.enter_context(TemporaryDirectory()))
        table = write_report(settings, encoder, found, folder)
        if settings.report is not None:
            print(f"report   {folder / REPORT}, {RESULT}")
        log_report(
            [folder / each for each in (REPORT, PAGE, RESULT, F1_BY_LAYER, LAYER_WEIGHTS)],
            tracking_uri=settings.mlflow_uri,
            experiment=EXPERIMENT,
            run_name=f"table7-{model_name(encoder.path)}",
            params=settings.model_dump(mode="json", exclude=_NOT_OF_THE_TABLE)
            | {"encoder.sha256": encoder.sha256},
            metrics={f"dev_f1.{name}": mean(scores.dev) for name, scores in table.rows.items()},
        )
    return True


def rows_to_measure(settings: Table7Settings, num_hidden_layers: int) -> list[str]:
    """The rows of the table, and single layers beyond them; raises `UserError` for a small model.

    `embeddings`, `second_to_last` and `last` are single layers already.
    """
    strategies = [find_strategy(name) for name in TABLE_7_TITLES if name != FINETUNING]
    for strategy in strategies:
        strategy.layers_of(num_hidden_layers)
    if not isinstance(TASKS.get(settings.task), Tagging):
        raise UserError("Table 7 is about tagging", f"--task {settings.task}", "leave it out")
    names = [FINETUNING] if settings.finetune else []
    names += [strategy.name for strategy in strategies]
    if settings.by_layer:
        names += [single_layer(layer).name for layer in range(1, num_hidden_layers - 1)]
    return names


def measure_seed(
    settings: Table7Settings, storage: Storage, names: Sequence[str], seed: int
) -> dict[str, dict[str, Any]] | None:
    """Returns the results of each row for a seed; None if it was stopped."""
    with ExitStack() as opened:
        jobs: dict[str, FinetuningJob] = {}
        for number, name in enumerate(names, start=1):
            job_settings = run_settings(settings, name, seed)
            job = opened.enter_context(opened_job(job_settings, storage, f"{name}-seed{seed}"))
            job.title = f"seed {seed}, {number} of {len(names)} {name}"
            jobs[name] = job
        left = [job for job in jobs.values() if not job.folder.summary.exists()]
        if left and not train_and_register(left, write_results):
            return None
        return {name: result_of(settings, job) for name, job in jobs.items()}


def run_settings(settings: Table7Settings, name: str, seed: int) -> TaskRunSettings:
    """The settings of one run."""
    approach = FINETUNING if name == FINETUNING else "features"
    options = TASKS[settings.task].model_copy(
        update={
            "max_length": settings.max_length,
            "document_context": settings.document_context,
        }
    )
    own: dict[str, Any]
    if name == FINETUNING:
        rate = settings.finetuning_learning_rate
        optimizer = FinetuningOptimizerSettings(peak_learning_rate=rate)
        own = {"epochs": settings.finetuning_epochs, "optimizer": optimizer}
    else:
        rate = settings.feature_learning_rate
        own = {
            "epochs": settings.feature_epochs,
            "optimizer": FeatureOptimizerSettings(peak_learning_rate=rate),
            "strategy": name,
            "tagger": settings.tagger,
        }
    return settings_class(settings.task, approach)(
        profile=settings.profile,
        data=settings.data,
        model=settings.model,
        storage=settings.storage,
        seed=seed,
        batch_size=settings.batch_size,
        precision=settings.precision,
        cluster=settings.cluster,
        tracking=FinetuneTrackingSettings(uri=settings.tracking_uri, experiment=EXPERIMENT),
        checkpoint=CheckpointSettings(every_steps=1000, keep=1),
        options=options,
        **own,
    )


def result_of(settings: Table7Settings, job: FinetuningJob) -> dict[str, Any]:
    """F1 (points) of a finished run on dev and, of fine-tuning, on test; learned shares of layers.

    Stored in the run's folder, so that it is computed once.
    """
    path = job.folder.path / RESULT
    if path.is_file():
        return read_json_object(path, "delete it, to have it computed anew", allow_nan=True)
    checkpoint = job.folder.last_checkpoint()
    best = checkpoint.extra["notes"]["best"]
    result: dict[str, Any] = {"dev": 100 * best["score"], "epoch": best["epoch"]}
    test = examples_of(settings, "test") if job.settings.approach == FINETUNING else None
    if test is not None:
        predictor = load_predictor(job.folder.model)
        predictions, _ = predictor.predict_examples(test, max_tokens=job.settings.max_tokens)
        result["test"] = 100 * predictor.task.metrics(predictions, test)[predictor.task.criterion]
    weights = load_file(checkpoint.files[BEST_WEIGHTS])
    if "mix.logits" in weights:
        shares = weights["mix.logits"].softmax(0).tolist()
        layers = [int(layer) for layer in weights["layers"].tolist()]
        result["shares"] = dict(zip(map(str, layers), shares, strict=True))
    write_atomically(path, json.dumps(result, indent=1) + "\n")
    return result


def examples_of(settings: Table7Settings, split: str) -> Sequence[Any] | None:
    """The examples of a split that have tags; None where there are none, or no such file."""
    try:
        found = TASKS[settings.task].examples(located(settings.data), split)
    except TaskDataError as error:
        if error.what.startswith("no file of the"):
            return None
        raise
    return [each for each in found if has_answer(each)] or None


def table_of(
    settings: Table7Settings, encoder: EncoderFolder, found: Mapping[str, Sequence[dict[str, Any]]]
) -> Table7:
    """The table of what has been measured so far."""
    config, tagger = encoder.config, settings.tagger
    normalizer = json.loads(encoder.tokenizer.to_str())["normalizer"] or {}
    cased = "uncased" if normalizer.get("lowercase") else "cased"
    context = "as much of the document as fits" if settings.document_context else "single sentences"
    return Table7(
        encoder=f"Encoder: {model_name(encoder.path)}, {cased}, {config.num_hidden_layers} layers,"
        f" {config.hidden_size} wide.",
        recipe=f"Features: {tagger.lstm_layers} layers of BiLSTM, {tagger.lstm_size} wide in each"
        f" direction, dropout {tagger.dropout:g}, {settings.feature_epochs} epochs,"
        f" {settings.feature_learning_rate:g}. Fine-tuning: {settings.finetuning_epochs} epochs,"
        f" {settings.finetuning_learning_rate:g}. Batches of {settings.batch_size}, {context}.",
        rows={
            name: SeedScores(
                [result["dev"] for result in results],
                [result["test"] for result in results if "test" in result],
            )
            for name, results in found.items()
            if name in TABLE_7_TITLES and results
        },
    )


def write_report(
    settings: Table7Settings,
    encoder: EncoderFolder,
    found: Mapping[str, Sequence[dict[str, Any]]],
    folder: Path,
) -> Table7:
    """Writes table7.html, table7.md, table7.json and the figures; returns the table."""
    table = table_of(settings, encoder, found)
    num_layers = encoder.config.num_hidden_layers
    by_layer = {
        strategy.layers_of(num_layers)[0]: [each["dev"] for each in found[name]]
        for name in found
        if name != FINETUNING
        for strategy in [find_strategy(name)]
        if len(strategy.layers_of(num_layers)) == 1
    }
    weights = {
        name: {
            int(layer): [result["shares"][layer] for result in results]
            for layer in results[0]["shares"]
        }
        for name, results in found.items()
        if name in STRATEGIES and STRATEGIES[name].is_learned
    }
    folder.mkdir(parents=True, exist_ok=True)
    lines = {
        TABLE_7_TITLES[name]: sum(table.rows[name].dev) / len(table.rows[name].dev)
        for name in (FINETUNING, "concat_last_four")
        if name in table.rows
    }
    title = model_name(encoder.path)
    figures = [
        saved_figure(
            lambda heading: f1_by_layer_drawing(by_layer, lines, heading),
            folder / F1_BY_LAYER,
            title=f"{title}: F1 by layer",
            caption="Dev F1 of single layers. Dots are seeds.",
        ),
        saved_figure(
            lambda heading: layer_weights_drawing(weights, heading),
            folder / LAYER_WEIGHTS,
            title=f"{title}: learned shares",
            caption="Shares of layers in learned sums. Dots are seeds, the line equal shares.",
        ),
    ]
    write_page(table7_page(table, figures, title), folder, "table7")
    more = {"by_layer": by_layer, "layer_shares": weights}
    write_atomically(folder / RESULT, json_table(table, more))
    return table


def report_table(table: Table7) -> Table:
    """Our scores next to the paper's, with notes."""
    rows = []
    for name, title in TABLE_7_TITLES.items():
        scores = table.rows.get(name, SeedScores(()))
        cells = [
            _scores_cell(scores.dev),
            Cell(str(len(scores.dev)) if scores.dev else DASH, len(scores.dev) or None),
            Cell(f"{TABLE_7_DEV[name]:.1f}", TABLE_7_DEV[name]),
            _scores_cell(scores.test),
            Cell(f"{TABLE_7_TEST[name]:.1f}", TABLE_7_TEST[name])
            if name in TABLE_7_TEST
            else Cell(""),
        ]
        rows.append(Row([title, *cells]))
    heads = ["approach", "dev F1", "seeds", "paper, dev", "test F1", "paper, test"]
    return Table("F1 of entities, in points", heads, rows, table.notes)


def _scores_cell(scores: Sequence[float]) -> Cell:
    return Cell(score_text(scores), mean(scores) if scores else None)


def table7_page(table: Table7, figures: Sequence[Figure], title: str) -> Page:
    """The table and the figures by layer as a page."""
    shown = [name for name in (FINETUNING, *table.order[:1]) if name in table.rows]
    scores = [
        f"{TABLE_7_TITLES[name]} {score_text(table.rows[name].dev)} (paper {TABLE_7_DEV[name]})"
        for name in shown
    ]
    sections = [
        Section("Strategies", [report_table(table)]),
        Section("Layers", [Figures(figures)]),
    ]
    return Page(f"Table 7: {title}", f"Dev F1: {', '.join(scores) or DASH}", sections=sections)


def json_table(table: Table7, more: Mapping[str, Any]) -> str:
    """All scores and notes as JSON, with what else is given, such as F1 by layer."""
    rows = {
        name: {
            "dev": list(scores.dev),
            "test": list(scores.test),
            "dev_mean": mean(scores.dev) if scores.dev else None,
            "dev_standard_error": _standard_error(scores.dev),
            "paper_dev": TABLE_7_DEV[name],
            "paper_test": TABLE_7_TEST.get(name),
        }
        for name, scores in table.rows.items()
    }
    content = {"unit": "F1, points", "rows": rows, "notes": table.notes, **more}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _standard_error(scores: Sequence[float]) -> float | None:
    return stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None


def f1_by_layer_drawing(
    by_layer: Mapping[int, Sequence[float]], lines: Mapping[str, float], title: str
) -> "Drawing":
    """Draws F1 (points) of single layers, 0 being the embeddings; each seed is a dot.

    `lines` are figures to compare with, by name.
    """
    layers = sorted(by_layer)
    figure = new_figure(max(3.7, 0.36 * len(layers)), 3.4)
    axes = figure.add_subplot()
    set_title(axes, title)
    for layer in layers:
        scores = list(by_layer[layer])
        axes.plot([layer] * len(scores), scores, "o", color=BLUE, alpha=0.35, markersize=4)
    means = [mean(by_layer[layer]) for layer in layers]
    axes.plot(layers, means, color=BLUE, linewidth=2, marker="o", markersize=6)
    note = {"fontsize": 8, "xytext": (0, 9), "textcoords": "offset points", "ha": "center"}
    for layer, value in zip(layers, means, strict=True):
        axes.annotate(f"{value:.1f}", (layer, value), color=BLUE, fontweight="bold", **note)
    for color, (name, value) in zip((RED, GREY, INK), lines.items(), strict=False):
        line = axes.axhline(value, color=color, linewidth=1.3, linestyle=DASHED)
        line.set_label(f"{name}, {value:.1f}")
    if lines:
        axes.legend(frameon=False, labelcolor=INK, loc="best")
    axes.set_xlabel("layer (0: embeddings)", color=INK)
    axes.set_ylabel("dev F1 (points)", color=INK)
    axes.set_xticks(layers)
    axes.margins(y=0.12)
    tidy(axes)
    return figure


def layer_weights_drawing(
    weights: Mapping[str, Mapping[int, Sequence[float]]], title: str
) -> "Drawing":
    """Draws the shares (they add up to 1) of layers in learned sums by strategy; seeds are dots."""
    width = max((len(shares) for shares in weights.values()), default=0)
    figure = new_figure(max(3.7, 0.36 * width), 2.2 * max(len(weights), 1) + 0.5)
    for number, (name, shares) in enumerate(weights.items(), start=1):
        axes = figure.add_subplot(len(weights), 1, number)
        set_title(axes, f"{title}: {name}" if title and number == 1 else name)
        layers = sorted(shares)
        axes.bar(layers, [mean(shares[layer]) for layer in layers], color=BLUE, width=0.6)
        for layer in layers:
            dots = list(shares[layer])
            axes.plot([layer] * len(dots), dots, "o", color=INK, alpha=0.5, markersize=4)
        axes.axhline(1 / max(len(layers), 1), color=GREY, linewidth=1.2, linestyle=DASHED)
        axes.set_xticks(layers)
        axes.set_ylabel("share", color=INK)
        axes.set_xlabel("layer", color=INK)
        tidy(axes)
    return figure
