"""Measures what a model loses in int8: a folder in float32 and data go in, a table comes out.

Shapes: N texts, H hidden size, P places, L outputs of the head.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from bert_core.errors import UserError
from bert_core.evaluation.comparison import compare
from bert_core.evaluation.outcomes import documents, outcomes
from bert_core.features.extractor import Extractor, FeatureChoice, load_extractor
from bert_core.features.sentence_pooling import read_sentence_pooling
from bert_core.model.bert import TASK_HEADS, Bert
from bert_core.model.cpu.linear import weight_levels
from bert_core.model.tagger import FEATURE_TAGGER
from bert_core.model_folder import load_model_folder
from bert_core.predictor import Predictor, compute_all_outputs, load_predictor
from bert_core.quantization import for_inference, read_precision
from bert_core.tasks.encoded_rows import EncodedRows, gather_items, tally_text
from bert_core.tasks.task import FloatArray
from bert_core.text.rng import IntArray
from bert_core.text.sources import find_parts
from bert_core.text.texts import divide, read_texts
from workflows.evaluation.task_options import with_options
from workflows.finetuning.data import answered_examples, located
from workflows.quantization.settings import QuantizeSettings
from workflows.quantization.table import QuantizationLoss, Timing, loss_of_encoder, loss_of_task

_TURNS = 16  # enough that both meet the same weather, and parts still fill micro-batches

T = TypeVar("T")


def measured_loss(settings: QuantizeSettings, folder: Path) -> QuantizationLoss:
    """Measures a model folder in float32 and in int8, on the CPU.

    Raises `UserError` for a folder that is in int8 already, and for data without answers or texts.
    """
    if read_precision(folder) != "float32":
        raise UserError(
            "a model folder that is in int8 already",
            str(folder),
            "give the float32 folder that it was made of",
        )
    _, model, _ = load_model_folder(folder)
    if {*TASK_HEADS, FEATURE_TAGGER} & set(model.heads) or settings.task is not None:
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
    task = with_options(predictor.task, settings.options)
    predictor = replace(predictor, task=task)
    examples, unanswered = answered_examples(task, settings.data, settings.split)
    model.heads = predictor.model.heads  # of a foreign folder those of the task alone
    in_int8 = replace(predictor, model=for_inference(model, "int8", predictor.device))
    rows = task.encode(examples, predictor.tokenizer)
    parts, seconds = in_turns(
        rows.num_items,
        [partial(_outputs, each, rows, settings.max_tokens) for each in (predictor, in_int8)],
    )
    size = task.head.num_outputs
    first, second = (task.decode(_joined(each, rows, size), rows, examples) for each in parts)
    comparison = compare(
        task,
        first,
        second,
        examples,
        num_resamples=settings.num_resamples,
        seed=settings.seed,
        groups=documents(examples),
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
    """The places of these items among those of all rows, and the outputs there, [P, L]."""
    outputs, _ = compute_all_outputs(
        predictor.task,
        predictor.model,
        gather_items([(rows, items)]),
        device=predictor.device,
        max_tokens=max_tokens,
    )
    return rows.places_of(items), outputs


def _joined(
    parts: Sequence[tuple[IntArray, FloatArray]], rows: EncodedRows, num_outputs: int
) -> FloatArray:
    outputs = np.zeros((len(rows.places), num_outputs), dtype=np.float32)
    for places, some in parts:
        outputs[places] = some
    return outputs


def _of_encoder(settings: QuantizeSettings, folder: Path, model: Bert) -> QuantizationLoss:
    dropped: Counter[str] = Counter()
    texts: list[str] = []
    for part in divide(list(find_parts([settings.data], "text", dropped))):
        for each in read_texts(part, dropped):
            texts += [each.text] if isinstance(each.text, str) else []
    if not texts:
        raise UserError("no texts", settings.data, "give a file with a text a line")
    said = read_sentence_pooling(folder, model.config.max_position_embeddings)
    choice = FeatureChoice(pooling=said.pooling, max_length=said.max_length)
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
    """What each computation makes of all items, part by part, and the CPU seconds it took.

    They take turns at each part, so that what slows one on a busy machine slows the others too.
    """
    found: list[list[T]] = [[] for _ in computations]
    seconds = [0.0] * len(computations)
    for part in np.array_split(np.arange(num_items), min(_TURNS, num_items)):
        for number, compute in enumerate(computations):
            begin = time.process_time()
            found[number].append(compute(part))
            seconds[number] += time.process_time() - begin
    return found, seconds


def _called(settings: QuantizeSettings) -> str:
    """What the data is called, without the folders of this machine."""
    where, name = located(settings.data), Path(settings.data).name
    is_file = isinstance(where, Path) and where.is_file()
    return name if is_file else f"{settings.split} of {name}"


def _notes(timing: Timing) -> list[str]:
    bits = weight_levels().bit_length() + 1
    exact = "Weights had 8 bits; on a CPU without VNNI they have 7, and a little more is lost."
    return [timing.sentence, exact if bits == 8 else "Weights had 7 bits; with VNNI they have 8."]
