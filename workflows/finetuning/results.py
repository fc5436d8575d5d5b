"""Results of a fine-tuning run: model folder, card, report on dev, summary."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from bert_core.config import ModelConfig
from bert_core.disk import write_atomically
from bert_core.errors import one_line
from bert_core.evaluation.decisions import Decisions, tune_decisions
from bert_core.evaluation.intervals import NUM_RESAMPLES
from bert_core.example_answers import example_of_task
from bert_core.features.sentence_pooling import SentencePooling, sentence_modules, sparse_modules
from bert_core.model.bert import Bert
from bert_core.model.tagger import FEATURE_TAGGER, FeatureTagger
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import Predictor, load_predictor
from bert_core.quantization import for_inference
from bert_core.strict_files import parse_json
from bert_core.tasks.catalog import architecture_of, task_config
from bert_core.tasks.encoded_rows import tally_text
from bert_core.tasks.metrics import readable_metric
from bert_core.tasks.reranking import Reranking
from bert_core.tasks.task import add_task_head, divide_outputs
from bert_core.tasks.text_embedding import TextEmbedding
from bert_core.training.checkpoint import CheckpointInfo
from bert_core.training_statistics import statistics_of_examples
from workflows.evaluation.report import EvaluationReport, evaluation_report, write_report
from workflows.finetuning.data import TaskData
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.settings import FeatureSettings, FinetuneSettings, TaskRunSettings
from workflows.finetuning.students import MeasuredModel, measure_models, table_lines, titles
from workflows.finetuning.worker import (
    BEST_OUTPUTS,
    BEST_PREDICTIONS,
    BEST_WEIGHTS,
    learning_rate,
)
from workflows.model_location import model_name
from workflows.runs.tracker import ARTIFACTS_NAME, JOURNAL_NAME
from workflows.training.job import JobResults, Usage, lineage_of
from workflows.training.loss_plot import FINETUNING, plot_losses
from workflows.versions.model_card import finetuned_model_card

PIPELINES = {
    "BertForSequenceClassification": "text-classification",
    "BertForTokenClassification": "token-classification",
    "BertForQuestionAnswering": "question-answering",
}
"""What `transformers` calls the tasks that it has a pipeline for."""


CARD_LABELS = 100
"""So many labels a card names: a description at MLflow has room for 5,000 characters."""


STUDENTS = "distillation.json"
"""Teacher and student side by side, among the artifacts."""

DEV_REPORT = "dev"
"""The report on dev, among the artifacts."""

TEMPERATURE_FIELD = "bertline_temperature"
"""Where config.json records what the head's weights are divided by; nobody need read it."""


def write_results(job: FinetuningJob) -> JobResults:
    """Writes figures, card, the best epoch's model folder and its report on dev.

    Reads the last checkpoint, which holds the best epoch's weights and predictions.
    """
    folder, checkpoint = job.folder, job.folder.last_checkpoint()
    artifacts = folder.path / ARTIFACTS_NAME
    plot = artifacts / "loss.png"
    plot_losses(folder.path / JOURNAL_NAME, plot, title=folder.name, curves=FINETUNING)
    decisions = dev_decisions(job, checkpoint)
    students = measured_students(job, checkpoint, decisions)
    card = finetuning_card(job, checkpoint, decisions, students)
    write_atomically(artifacts / "model_card.md", card)
    export(job, checkpoint, card, decisions)
    report = write_dev_report(job, checkpoint, decisions)
    figures = checkpoint.extra["notes"]["best"]["figures"]
    notes = [f"decisions    {finding.text}" for finding in decisions.findings]
    notes += [f"warning      {one_line(report.warning)} (dev)"] if report.warning else []
    notes += [f"             {line}" for line in table_lines(students)]
    return JobResults(summary_lines(job, checkpoint, plot, notes), card, figures)


def dev_decisions(job: FinetuningJob, checkpoint: CheckpointInfo) -> Decisions:
    """The best epoch's predictions for dev, with what was tuned on it, if that is asked for."""
    settings, task, dev = job.settings, job.data.task, job.data.dev
    if not settings.decisions.changed:
        return Decisions(task, best_predictions(checkpoint))
    outputs = load_file(checkpoint.files[BEST_OUTPUTS])["outputs"].numpy()
    asked, seed = settings.decisions, settings.seed
    return tune_decisions(task, outputs, dev.rows, dev.examples, asked, seed=seed)


def shown_labels(labels: Sequence[str], num_shown: int) -> str:
    """The first labels on one line, long ones cut, and how many more there are."""
    shown = [one_line(name if len(name) <= 40 else f"{name[:39]}…") for name in labels[:num_shown]]
    more = len(labels) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def measured_students(
    job: FinetuningJob, checkpoint: CheckpointInfo, decisions: Decisions
) -> list[MeasuredModel]:
    """Measures teacher and student, and writes what is found; [] without a teacher.

    All of them decide as their folders do, with thresholds that were tuned.
    """
    if job.data.teacher is None:
        return []
    model, tokenizer = trained_model(job, checkpoint)
    device = torch.device("cpu")
    student = Predictor(
        for_inference(model, "float32", device), tokenizer, job.data.task, job.settings.task
    )
    size = checkpoint.files[BEST_WEIGHTS].stat().st_size
    students = measure_models(job, student, size, decisions.predictions)
    content = json.dumps([asdict(each) for each in students], indent=1)
    write_atomically(job.folder.path / ARTIFACTS_NAME / STUDENTS, content + "\n")
    return students


def finetuning_card(
    job: FinetuningJob,
    checkpoint: CheckpointInfo,
    decisions: Decisions,
    students: Sequence[MeasuredModel] = (),
) -> str:
    """The model card of a finished run; its metrics are those before decisions were tuned.

    `students` are its teacher, and what it compares with.
    """
    settings, data = job.settings, job.data
    best = checkpoint.extra["notes"]["best"]
    return finetuned_model_card(
        name=settings.tracking.register_as or job.folder.name,
        summary=_summary(settings) + _direction(job),
        data={
            "Data": settings.data_name,
            "Training examples": len(data.train.examples),
            "Dev examples": len(data.dev.examples),
            **_unlabelled(data),
            "Of the training examples": tally_text(data.train.rows.tally),
            "Of the dev examples": tally_text(data.dev.rows.tally),
            "Labels": shown_labels(data.task.labels, CARD_LABELS) or "none",
            "SHA-256 of the encoded examples": data.sha256,
        },
        recipe={
            "Epochs": settings.epochs,
            "Best epoch": best["epoch"],
            **({"Ended early": ended} if (ended := ended_early(job, checkpoint)) else {}),
            "Examples per step": settings.batch_size,
            "Longest row (tokens)": data.task.max_length,
            "Optimizer": settings.optimizer.name,
            "Peak learning rate": settings.optimizer.peak_learning_rate,
            "Warm-up (share of steps)": settings.optimizer.warmup_share,
            **_approach(settings),
            **_decisions_row(decisions),
            "Used": Usage.of(checkpoint),
            "Seed": settings.seed,
        },
        figures={name.removeprefix("dev/"): value for name, value in best["figures"].items()},
        lineage={
            "Run": job.folder.name,
            "Encoder": settings.model if "/" not in settings.model else Path(settings.model).name,
            "Encoder SHA-256": job.encoder.sha256,
            **_teacher(job),
        },
        comparison=[titles(students), *(each.cells for each in students)] if students else (),
        pipeline=_pipeline(job),
    )


def _decisions_row(decisions: Decisions) -> dict[str, Any]:
    """What was tuned on dev, for the card, in the words of the summary."""
    if not decisions.findings:
        return {}
    return {"Decisions": "; ".join(finding.text for finding in decisions.findings)}


def _pipeline(job: FinetuningJob) -> str | None:
    """What the Hub calls the task of the model."""
    match job.data.task:
        case TextEmbedding():
            return "feature-extraction" if job.data.task.is_sparse else "sentence-similarity"
        case Reranking():
            return "text-ranking"
    return PIPELINES.get(_architecture(job))


def _summary(settings: TaskRunSettings) -> str:
    if isinstance(settings, FeatureSettings):
        return (
            f"A BERT encoder as it was, and a BiLSTM over its hidden states ({settings.strategy})"
            f" trained for the task {settings.task} with Bertline."
        )
    return f"A BERT encoder fine-tuned for the task {settings.task} with Bertline."


def _direction(job: FinetuningJob) -> str:
    """What the card adds of an encoder that attends to the left only."""
    if not job.encoder.config.is_decoder:
        return ""
    text = " The encoder attends to the left only (`is_decoder`)"
    if not job.data.task.head.pooled:
        return f"{text}."
    return f"{text}, and a text is read at its last token: `transformers` loads the encoder alone."


def _unlabelled(data: TaskData) -> dict[str, int]:
    examples = 0 if data.unlabelled is None else len(data.unlabelled.examples)
    return {"Unlabelled examples": examples} if examples else {}


def _teacher(job: FinetuningJob) -> dict[str, Any]:
    """What the card says of a teacher, where there is one."""
    teacher = job.data.teacher
    if teacher is None:
        return {}
    name = teacher.version or model_name(teacher.path)
    return {"Teacher": name, "Teacher SHA-256": teacher.sha256}


def _approach(settings: TaskRunSettings) -> dict[str, Any]:
    """What only one approach has, for the card."""
    if isinstance(settings, FeatureSettings):
        tagger = settings.tagger
        return {
            "Features": settings.strategy,
            "BiLSTM": f"{tagger.lstm_layers} layers, {tagger.lstm_size} wide in each direction",
            "Dropout": tagger.dropout,
        }
    assert isinstance(settings, FinetuneSettings)
    found: dict[str, Any] = {"Dropout": settings.dropout.hidden_dropout_prob}
    if settings.keep_layers is not None:
        found["Layers kept of the encoder's"] = settings.keep_layers
    if settings.freeze_layers:
        found["Lowest layers that did not learn"] = settings.freeze_layers
    if settings.reinit_layers:
        found["Highest layers drawn anew"] = settings.reinit_layers
    if settings.optimizer.layer_decay != 1:
        found["Learning rate of a layer, of that above"] = settings.optimizer.layer_decay
    if settings.teacher is not None:
        found["Share of the loss to the teacher"] = settings.distillation.alpha
        found["Temperature"] = settings.distillation.temperature
    return found


def _architecture(job: FinetuningJob) -> str:
    """The class of `transformers` that loads the folder: the encoder's, where it lacks the head.

    That is of a tagger over features, and of a text's last token.
    """
    is_features = isinstance(job.settings, FeatureSettings)
    reads_last = job.encoder.config.is_decoder and job.data.task.head.pooled
    return "BertModel" if is_features or reads_last else architecture_of(job.data.task)


def best_predictions(checkpoint: CheckpointInfo) -> list[dict[str, Any]]:
    """What the best epoch predicted for the dev examples, in their order."""
    path = checkpoint.files[BEST_PREDICTIONS]
    with path.open("rb") as file:
        return [parse_json(line, str(path), allow_nan=True) for line in file]


def export(job: FinetuningJob, checkpoint: CheckpointInfo, card: str, decisions: Decisions) -> None:
    """Writes the best epoch's weights as a model folder that knows its task.

    A temperature is divided into the head, so every reader of the folder has calibrated scores;
    config.json records it.
    """
    model, tokenizer = trained_model(job, checkpoint)
    train, dev = job.data.train, job.data.dev
    task = decisions.task.tuned(decisions.predictions, dev.examples)
    config = task_config(job.settings.task, task) | {"architectures": [_architecture(job)]}
    if decisions.temperature != 1:
        divide_outputs(model, decisions.temperature)
        config[TEMPERATURE_FIELD] = decisions.temperature
    save_model_folder(
        job.folder.model,
        model,
        tokenizer,
        card,
        extra_config=config,
        lineage=lineage_of(
            job.folder, job.described()[1], checkpoint.extra["notes"]["best"]["figures"]
        ),
        example=example_of_task(model, tokenizer, task, dev.examples),
        statistics=statistics_of_examples(task, train.examples, train.rows, tokenizer),
        modules=_modules(task, model.config) if isinstance(task, TextEmbedding) else None,
    )


def trained_model(job: FinetuningJob, checkpoint: CheckpointInfo) -> tuple[Bert, Tokenizer]:
    """The model of the best epoch, and its tokenizer."""
    weights = load_file(checkpoint.files[BEST_WEIGHTS])
    changes = job.settings.encoder_changes()
    _, model, tokenizer = load_model_folder(job.encoder.path, changes=changes)
    if isinstance(job.settings, FeatureSettings):
        tagger = FeatureTagger.from_weights(weights, model.config)
        tagger.load_state_dict(weights)
        model = Bert(model.encoder, {FEATURE_TAGGER: tagger})
    else:
        add_task_head(model, job.data.task)
        model.load_state_dict(weights)
    return model, tokenizer


def _modules(task: TextEmbedding, config: ModelConfig) -> dict[str, Any]:
    """The files by which sentence-transformers, and servers, make vectors as they were trained."""
    given = {"query": task.query_prompt, "document": task.passage_prompt}
    said = SentencePooling(
        max_length=min(task.max_length, config.max_position_embeddings),
        prompts={name: prompt for name, prompt in given.items() if any(given.values())},
    )
    if task.is_sparse:
        return sparse_modules(said)
    return sentence_modules(replace(said, pooling=task.pooling, normalize=True), config.hidden_size)


def summary_lines(
    job: FinetuningJob, checkpoint: CheckpointInfo, plot: Path, notes: Sequence[str] = ()
) -> list[str]:
    """What the run came to and where everything lies; `notes` are about its decisions."""
    data, best = job.data, checkpoint.extra["notes"]["best"]
    criterion = data.task.criterion
    ended = ended_early(job, checkpoint)
    epochs = job.settings.epochs * checkpoint.step / planned_steps(checkpoint)
    examples = round(epochs * data.num_examples)
    others = [
        f"{one_line(readable_metric(name.removeprefix('dev/')))} {value:.3f}"
        for name, value in best["figures"].items()
        if name != f"dev/{criterion}"
    ]
    return [
        f"finished     {checkpoint.step:,} steps, {examples:,} examples ({epochs:.3g}"
        f" epochs of {data.num_examples:,}), {checkpoint.num_tokens_seen:,} tokens",
        *([f"ended early  {ended}"] if ended else []),
        f"rows         of train {tally_text(data.train.rows.tally)}; "
        f"of dev {tally_text(data.dev.rows.tally)}",
        f"dev          {criterion} {best['score']:.3f} after epoch {best['epoch']} of "
        f"{job.settings.epochs}; {', '.join(others)}",
        *notes,
        *_test_lines(job),
        f"used         {Usage.of(checkpoint)}",
        f"model        {job.folder.model}",
        f"plot         {plot}",
        f"settings     {job.folder.settings}",
    ]


def planned_steps(checkpoint: CheckpointInfo) -> int:
    """The steps of the run's schedule, of which the last may never have been made."""
    return checkpoint.extra.get("planned_steps", checkpoint.step)


def ended_early(job: FinetuningJob, checkpoint: CheckpointInfo) -> str:
    """Where a run ended before its last step, and what its schedule lacks; "" where it did not."""
    planned, settings = planned_steps(checkpoint), job.settings
    if checkpoint.step >= planned:
        return ""
    best = checkpoint.extra["notes"]["best"]["epoch"]
    rate = learning_rate(settings, planned, checkpoint.step - 1)
    share = rate / settings.optimizer.peak_learning_rate
    return (
        f"after step {checkpoint.step:,} of {planned:,}, {settings.patience} evaluations without"
        f" a better one; the learning rate was still {share:.0%} of its peak, so the end of its"
        f" schedule, where scores often rise most, is missing (--epochs {math.ceil(best)} has it)"
    )


def _test_lines(job: FinetuningJob) -> list[str]:
    """What the model reaches on the test file, where one was given."""
    test = job.data.test
    if test is None:
        return []
    predictor = load_predictor(job.folder.model)
    predictions, _ = predictor.predict_examples(test.examples, max_tokens=job.settings.max_tokens)
    figures = predictor.task.metrics(predictions, test.examples)
    text = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
    return [f"test         {len(test.examples):,} examples, {tally_text(test.rows.tally)}: {text}"]


def write_dev_report(
    job: FinetuningJob, checkpoint: CheckpointInfo, decisions: Decisions
) -> EvaluationReport:
    """Writes metrics with intervals, figures and the worst mistakes of the best epoch."""
    dev, epoch = job.data.dev, checkpoint.extra["notes"]["best"]["epoch"]
    is_tuned = any(finding.value for finding in decisions.findings)
    report = evaluation_report(
        decisions.task,
        decisions.predictions,
        dev.examples,
        title=f"{job.folder.name}: dev after epoch {epoch}"
        + (", decisions tuned on it" if is_tuned else ""),
        slice_by=(),
        num_resamples=NUM_RESAMPLES,
        seed=job.settings.seed,
        hurried=True,
    )
    report = replace(report, tally=dev.rows.tally)
    write_report(report, job.folder.path / ARTIFACTS_NAME / DEV_REPORT)
    return report
