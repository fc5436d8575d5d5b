"""Measures the loss of a model in int8, and writes the int8 model folder.

Shapes: N texts, P positions of outputs, L outputs of the head.
"""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bert_core.errors import UserError
from bert_core.evaluation.intervals import Comparison, compare
from bert_core.evaluation.outcomes import Outcome, outcomes, resampling_units, spans
from bert_core.example import EXAMPLE, read_example
from bert_core.example_answers import answered_by
from bert_core.features.extractor import Extractor, FeatureChoice, load_extractor
from bert_core.features.sentence_pooling import read_sentence_pooling
from bert_core.model.bert import TASK_HEADS, Bert
from bert_core.model.cpu.linear import weight_levels
from bert_core.model.tagger import FEATURE_TAGGER
from bert_core.model_folder import CHECKSUMS, CONFIG, folder_to_publish, load_model_folder
from bert_core.predictor import Predictor, load_predictor
from bert_core.quantization import PRECISION_FIELD, for_inference, read_precision
from bert_core.strict_files import read_json_object
from bert_core.tasks.catalog import task_of
from bert_core.tasks.encoded_rows import EncodedRows, gather_items, tally_text
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.task import FloatArray
from bert_core.text.rng import IntArray
from bert_core.text.sources import CorpusError, find_parts
from bert_core.text.texts import divide, read_texts
from workflows.evaluation.settings import with_options
from workflows.finetuning.data import answered_examples, located
from workflows.output_folder import new_folder
from workflows.progress import share_line
from workflows.quantization.settings import QuantizeSettings
from workflows.runs.tracker import without_machine_paths

CARD = "README.md"
_TITLE = "## In int8"
_BEFORE = "## How to load"
_EXPLANATION = (
    "Bertline computes the encoder's linear layers of this folder in 8-bit integers on the CPU. The"
    " stored weights are float32, and `transformers` computes in float32."
)

_TURNS = 16  # many enough to share the machine's load fairly, large enough to fill micro-batches

T = TypeVar("T")


@dataclass(frozen=True)
class QuantizationLoss:
    """The measured loss: data, a row for each figure, and notes."""

    data: str
    titles: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str]

    @property
    def text(self) -> str:
        """The loss in Markdown."""
        bar = ("---", *("---:" for _ in self.titles[1:]))
        table = [f"| {' | '.join(cells)} |" for cells in (self.titles, bar, *self.rows)]
        return "\n\n".join([f"Measured on {self.data}:", "\n".join(table), " ".join(self.notes)])


@dataclass(frozen=True)
class Timing:
    """CPU seconds of both precisions for the same tokens."""

    float32: float
    int8: float
    num_tokens: int

    @property
    def sentence(self) -> str:
        """The speed-up in one sentence."""
        return (
            f"{self.num_tokens:,} tokens took {self.float32:,.1f} s of CPU time in float32 and"
            f" {self.int8:,.1f} s in int8, {self.float32 / self.int8:.2f} times as fast."
        )


def measured_loss(settings: QuantizeSettings, folder: Path) -> QuantizationLoss:
    """Measures a model folder in float32 and in int8, on the CPU.

    Raises `UserError` for a folder that is already in int8, and for data without answers or texts.
    """
    if read_precision(folder) != "float32":
        raise UserError(
            "the model folder is already in int8",
            str(folder),
            "pass the float32 folder that it was made from",
        )
    _, model, _ = load_model_folder(folder)
    # A model of vectors has no head that is seen in its weights.
    recorded = task_of(read_json_object(folder / CONFIG)) is not None
    if recorded or {*TASK_HEADS, FEATURE_TAGGER} & set(model.heads) or settings.task is not None:
        return _of_task(settings, folder, model)
    return _of_encoder(settings, folder, model)


def _of_task(settings: QuantizeSettings, folder: Path, model: Bert) -> QuantizationLoss:
    predictor = load_predictor(folder, task_name=settings.task)
    if settings.task is not None and settings.task != predictor.task_name:
        raise UserError(
            f"a model of the task {predictor.task_name}",
            settings.model,
            f"leave --task {settings.task} out, or give another model",
        )
    positions = predictor.model.config.max_position_embeddings
    task = with_options(predictor.task, settings.options, positions)
    predictor = replace(predictor, fine_tuned_for=task)
    examples, unanswered = answered_examples(task, settings.data, settings.split)
    model.heads = predictor.model.heads  # of a foreign folder those of the task alone
    in_int8 = replace(predictor, model=for_inference(model, "int8", predictor.device))
    rows = task.encode(examples, predictor.tokenizer)
    parts, seconds = in_turns(
        rows.num_items,
        [partial(_outputs, each, rows, settings.max_tokens) for each in (predictor, in_int8)],
    )
    first, second = (task.decode(_joined(part), rows, examples) for part in parts)
    comparison = compare(
        task,
        first,
        second,
        examples,
        num_resamples=settings.num_resamples,
        seed=settings.seed,
        groups=resampling_units(examples),
    )
    left_out = f" ({tally_text(unanswered)} left out)" if unanswered else ""
    return loss_of_task(
        f"{len(examples):,} examples with answers{left_out}, {_called(settings)}",
        comparison,
        task.criterion,
        [outcomes(task, each, examples) for each in (first, second)],
        _notes(Timing(*seconds, num_tokens=len(rows.input_ids))),
    )


def _outputs(
    predictor: Predictor, rows: EncodedRows, max_tokens: int, items: IntArray
) -> tuple[IntArray, FloatArray]:
    """Computes the outputs of these items, and their positions among all rows' outputs."""
    outputs, _ = compute_all_outputs(
        predictor.task,
        predictor.model,
        gather_items([(rows, items)]),
        device=predictor.device,
        max_tokens=max_tokens,
    )
    per_row = predictor.task.head.per_row
    return rows.rows_of(items) if per_row else rows.places_of(items), outputs


def _joined(parts: Sequence[tuple[IntArray, FloatArray]]) -> FloatArray:
    """The outputs of all parts, which together have every position once."""
    positions = np.concatenate([places for places, _ in parts])
    return np.concatenate([some for _, some in parts])[np.argsort(positions)]


def _of_encoder(settings: QuantizeSettings, folder: Path, model: Bert) -> QuantizationLoss:
    dropped: Counter[str] = Counter()
    texts: list[str] = []
    unknown = [name for name in settings.options if name != "text_column"]
    if unknown:
        what = "an option of tasks, and an encoder has none"
        raise UserError(what, f"--options {unknown[0]}", "leave it out, or give --task")
    column = settings.options.get("text_column", "text")
    try:
        for part in divide(list(find_parts([settings.data], column, dropped))):
            for each in read_texts(part, dropped, text_column=column):
                texts += [each.text] if isinstance(each.text, str) else []
    except CorpusError as error:
        remedy = error.remedy.replace("--text_column", "--options text_column=COLUMN")
        raise UserError(error.what, error.where, remedy) from error
    if not texts:
        raise UserError("no texts", settings.data, "give a file with a text a line")
    pooling = read_sentence_pooling(folder, model.config.max_position_embeddings)
    choice = FeatureChoice(pooling=pooling.pooling, max_length=pooling.max_length)
    extractor = load_extractor(folder, choice, max_tokens=settings.max_tokens)
    in_int8 = replace(extractor, encoder=for_inference(model, "int8", extractor.device).encoder)
    parts, seconds = in_turns(
        len(texts), [partial(_vectors, each, texts) for each in (extractor, in_int8)]
    )
    first, second = (np.concatenate(each).astype(np.float64) for each in parts)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(1) / np.maximum(lengths, 1e-12)
    num_tokens = sum(len(each.ids) for each in extractor.tokenizer.encode_batch(texts))
    return loss_of_encoder(
        f"{len(texts):,} texts, {_called(settings)}",
        cosines,
        _notes(Timing(*seconds, num_tokens=num_tokens)),
    )


def _vectors(extractor: Extractor, texts: Sequence[str], items: IntArray) -> FloatArray:
    return extractor.of_texts([texts[int(number)] for number in items])


def in_turns(
    num_items: int, computations: Sequence[Callable[[IntArray], T]]
) -> tuple[list[list[T]], list[float]]:
    """Runs each computation on all items, part by part; returns results and CPU seconds of each.

    The computations alternate, so a busy machine slows all of them alike.
    """
    found: list[list[T]] = [[] for _ in computations]
    seconds = [0.0] * len(computations)
    shown, done = share_line(f"computing {num_items:,} texts in float32 and in int8"), 0
    for part in np.array_split(np.arange(num_items), min(_TURNS, num_items)):
        for number, compute in enumerate(computations):
            begin = time.process_time()
            found[number].append(compute(part))
            seconds[number] += time.process_time() - begin
        done += len(part)
        shown(done / num_items)
    return found, seconds


def _called(settings: QuantizeSettings) -> str:
    """The name of the data, without local folders."""
    where, name = located(settings.data), Path(settings.data).name
    is_file = isinstance(where, Path) and where.is_file()
    return name if is_file else f"{settings.split} of {name}"


def _notes(timing: Timing) -> list[str]:
    bits = weight_levels().bit_length() + 1
    exact = "Weights had 8 bits; on a CPU without VNNI they have 7, and a little more is lost."
    return [timing.sentence, exact if bits == 8 else "Weights had 7 bits; with VNNI they have 8."]


def loss_of_task(
    data: str,
    comparison: Comparison,
    criterion: str,
    answers: Sequence[Sequence[Outcome]],
    notes: Sequence[str],
) -> QuantizationLoss:
    """Tabulates the task's metrics, the criterion first, and counts changed answers.

    `answers` are those in float32 and in int8.
    """
    names = sorted(comparison.metrics, key=lambda name: name != criterion)
    rows = []
    for name in names:
        found = comparison.metrics[name]
        difference = found.difference.text("+.4f")
        rows.append((name, f"{found.first:.4f}", f"{found.second:.4f}", difference))
    titles = ("", "float32", "int8", "difference (95 % interval)")
    return QuantizationLoss(data, titles, rows, [_changes(*answers), *notes])


def loss_of_encoder(data: str, cosines: FloatArray, notes: Sequence[str]) -> QuantizationLoss:
    """Tabulates the cosines [N] of each text's vectors in float32 and in int8."""
    rows = [
        ("mean", f"{cosines.mean():.5f}"),
        ("1st percentile", f"{np.quantile(cosines, 0.01):.5f}"),
        ("smallest", f"{cosines.min():.5f}"),
    ]
    titles = ("", "cosine of a text's vectors in float32 and in int8")
    return QuantizationLoss(data, titles, rows, notes)


def _changes(before: Sequence[Outcome], after: Sequence[Outcome]) -> str:
    """Says how many answers have changed, or how far numbers have moved."""
    pairs = list(zip(before, after, strict=True))
    if all(isinstance(each.found, float) for each in (*before, *after)):
        moved = [abs(one.found - other.found) for one, other in pairs]
        return f"Numbers moved by {np.mean(moved):.4g} on average, by {max(moved):.4g} at most."
    changed = sum(_answer(one) != _answer(other) for one, other in pairs)
    return f"{changed:,} of {len(pairs):,} predictions changed ({changed / len(pairs):.2%})."


def _answer(outcome: Outcome) -> Any:  # noqa: ANN401 - of any task
    found = outcome.found
    if isinstance(found, list) and found and isinstance(found[0], Mapping):
        return spans(found)
    return set(found) if isinstance(found, list) else found


def write_quantized(source: Path, output: Path, loss: QuantizationLoss) -> None:
    """Writes a copy of a model folder that is computed in int8, atomically.

    The weights stay in float32 and are quantized when the folder is opened, so `transformers` reads
    it too. The model's example is answered anew, in int8. Raises `UserError` if `output` exists.
    """
    with folder_to_publish(new_folder(output)) as written:
        shutil.copytree(source, written, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
        config = read_json_object(source / CONFIG) | {PRECISION_FIELD: "int8"}
        _replace(written / CONFIG, _json(config))
        card = source / CARD
        title = f"# {source.resolve().name}\n"
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else title
        _replace(written / CARD, with_loss(text, loss))
        (written / CHECKSUMS).unlink(missing_ok=True)  # those of the source
        example = read_example(source)
        if example is not None:
            found = answered_by(written, example)
            _replace(written / EXAMPLE, _json(found.model_dump(mode="json")))


def with_loss(card: str, loss: QuantizationLoss) -> str:
    """Inserts the loss into a model card, before the section on loading."""
    section = f"{_TITLE}\n\n{_EXPLANATION}\n\n{without_machine_paths(loss.text)}\n"
    before, title, after = card.partition(f"\n{_BEFORE}\n")
    if not title:
        return f"{card.rstrip()}\n\n{section}"
    return f"{before.rstrip()}\n\n{section}{title}{after}"


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, sort_keys=True) + "\n"


def _replace(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)  # the copy of a read-only file is read-only
    path.write_text(text, encoding="utf-8")
