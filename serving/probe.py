"""A model folder -> a model that has shown that it answers, before anybody asks it."""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from bert_core.errors import UserError
from bert_core.example import check_example, read_example
from bert_core.example_answers import Source, question_of
from bert_core.features.extractor import FeatureChoice
from bert_core.features.units import cut_texts, unit_rows
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.task import FloatArray
from serving.batching import Work
from serving.models import ModelLoader, ServedModel, warm_up
from serving.pointers import Pointer

_SECONDS = 60.0
"""A model that needs longer for a short text is none to serve."""


def open_model(
    loader: ModelLoader, name: str, source: Path | Pointer, beside: Collection[ServedModel]
) -> ServedModel:
    """Loads a model, has it compute once, and asks it; see `ModelLoader.load`.

    Raises `UserError` for one that is damaged or does not answer as it should.
    """
    model = loader.load(name, source, beside)
    try:
        warm_up(model)
        probe(model)
    except BaseException:
        if model.batcher not in {each.batcher for each in beside}:
            model.batcher.close(finish=False)
        raise
    return model


def probe(model: ServedModel) -> None:
    """Asks a model its own example, or without one for the states of a text.

    Raises `UserError` where it answers otherwise than when its folder was written, or with what are
    no numbers.
    """
    example = read_example(model.folder)
    longest = model.config.max_position_embeddings
    if example is None:
        tokens = cut_texts(model.tokenizer, ["Is this a text?"], offsets=False)
        rows = unit_rows(
            tokens, model.tokenizer, unit="text", pooling="cls", max_length=longest
        ).rows
        states = _computed(model, Work(rows, (model.config.num_hidden_layers,)))
        wrong = None if np.isfinite(states).all() else "it computes what are no numbers"
    else:
        question = question_of(example, model.task, model.tokenizer, longest)
        rows = question.rows(model.tokenizer)
        outputs = _computed(model, _work_for(question.source, model, rows))
        wrong = check_example(example, question.answer(outputs, rows), model.precision)
    if wrong is not None:
        raise UserError(
            f"{model.name} does not answer as it should: {wrong}",
            str(model.folder),
            "train or export it again; the folder's example.json is what it said then",
        )


def _work_for(source: Source, model: ServedModel, rows: EncodedRows) -> Work:
    match source:
        case "task":
            return model.work(rows)
        case "masked_token":
            return model.masked_token_work(rows)
        case "states":
            return model.feature_work(rows, FeatureChoice())


def _computed(model: ServedModel, work: Work) -> FloatArray:
    (found,) = model.batcher.submit(work).result(_SECONDS)
    return found
