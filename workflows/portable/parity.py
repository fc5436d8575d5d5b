"""Compares a graph with the model it was made of: outputs, and what is decided by them.

Both answer the same inputs, the model in its packed path, the graph in padded batches.
Shapes: N rows of n tokens, P places where a head answers, L outputs there, D numbers of a vector.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_core.example import Inputs, read_example
from bert_core.features.extractor import Extractor, FeatureChoice
from bert_core.features.states import Computing
from bert_core.masked_language_model import (
    MASK,
    FillMask,
    masked_token_outputs,
    word_weight_outputs,
)
from bert_core.portable import INPUTS, PaddedModel
from bert_core.predictor import Predictor, load_predictor
from bert_core.tasks.answers import AnswerOptions, query_of
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.task import FloatArray, Task
from bert_core.text.documentation import read_documentation
from workflows.portable.graphs import Graph

NUM_TEXTS = 100
TOLERANCE = 1e-4
"""Of an output in float32."""

_BATCH = 4  # inputs of a batch, in mixed lengths, so that there is padding
_SOURCE = "email"  # of the standard library: text that every Python brings along


@dataclass(frozen=True)
class Parity:
    """How far a graph's outputs are from the model's.

    `equal` is the share of equal decisions, or None where answers are no decisions; then `apart`
    says how far they are, in words.
    """

    num_inputs: int
    shortest: int
    longest: int
    largest: float
    mean: float
    equal: float | None
    apart: str

    @property
    def sentence(self) -> str:
        """What was compared and found, in one line."""
        decided = self.apart if self.equal is None else f"{self.equal:.1%} of decisions are equal"
        return (
            f"{self.num_inputs} inputs of {self.shortest} to {self.longest} tokens: outputs differ"
            f" by {self.largest:.1e} at most, by {self.mean:.1e} on average; {decided}"
        )


@dataclass(frozen=True)
class Reference:
    """The model's answers to some inputs: their rows, the outputs [P, L], and what they mean.

    `first` is the first of the inputs, the folder's own example if it has one. `answers` turns
    outputs into an answer for each input; None of vectors.
    """

    first: Inputs
    rows: EncodedRows
    outputs: FloatArray
    answers: Callable[[FloatArray], list[dict[str, Any]]] | None

    def compare(self, graph: Graph, model: PaddedModel) -> Parity:
        """Asks the graph of a model for the same rows."""
        found = graph_outputs(graph, model, self.rows)
        differences = np.abs(found - self.outputs)
        equal, apart = self._decided(found)
        return Parity(
            self.rows.num_items,
            int(self.rows.lengths.min()),
            int(self.rows.lengths.max()),
            float(differences.max()),  # NaN if there is one
            float(differences.mean()),
            equal,
            apart,
        )

    def _decided(self, found: FloatArray) -> tuple[float | None, str]:
        if self.answers is None:
            lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(self.outputs, axis=1)
            cosines = (found * self.outputs).sum(1) / np.maximum(lengths, 1e-12)
            said = f"cosines of the vectors are {cosines.min():.4f} at least"
            return None, f"{said}, {cosines.mean():.4f} on average"
        pairs = list(zip(self.answers(self.outputs), self.answers(found), strict=True))
        if "value" in pairs[0][0]:
            moved = [abs(one["value"] - other["value"]) for one, other in pairs]
            return None, f"numbers moved by {np.mean(moved):.1e} on average"
        return float(np.mean([decision(one) == decision(other) for one, other in pairs])), ""


def decision(answer: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of any task
    """What an answer of any task decides, without its scores."""
    match answer:
        case {"label": label}:
            return label
        case {"labels": labels}:
            return set(labels)
        case {"entities": entities}:
            return {(each["type"], each["start"], each["end"]) for each in entities}
        case {"answers": answers}:
            return [(each["start"], each["end"]) for each in answers]
        case {"choice": choice}:
            return choice
        case {"masks": masks}:
            return [each["candidates"][0]["id"] for each in masks]
    raise ValueError(f"no decision in {list(answer)}")


def graph_outputs(graph: Graph, model: PaddedModel, rows: EncodedRows) -> FloatArray:
    """A graph's outputs for rows, as the packed path gives them: [P, L], or [N, D] of vectors."""
    parts = []
    for items in np.split(np.arange(rows.num_items), range(_BATCH, rows.num_items, _BATCH)):
        batch = rows.batch(items, "padded")
        num_rows = len(batch.place_counts)
        shape = num_rows, batch.num_slots // num_rows
        mask = np.zeros(shape, dtype=np.int64)
        mask[np.arange(shape[1]) < batch.layout.lengths.numpy()[:, None]] = 1
        tensors = batch.input_ids, None, batch.token_type_ids
        inputs = {
            name: mask if tensor is None else tensor.view(shape).numpy()
            for name, tensor in zip(INPUTS, tensors, strict=True)
        }
        found = graph(inputs)
        places = batch.places.numpy()
        arrays = [found[name] for name in model.output_names]
        if model.answer in ("token", "word", "span"):
            answers = np.stack(arrays, axis=-1) if model.answer == "span" else arrays[0]
            parts.append(answers.reshape(batch.num_slots, -1)[places])
        else:  # of each row, in the order in which the rows were encoded
            counts = batch.place_counts.numpy()
            first = np.cumsum(counts) - counts
            parts.append(arrays[-1][places[first] // shape[1]])
    return np.concatenate(parts)


def reference(folder: Path, model: PaddedModel) -> Reference:
    """The answers of a model folder to its own example and to texts of all lengths."""
    predictor = load_predictor(folder)
    texts = example_texts(model.max_length)
    example = read_example(folder)
    given = [] if example is None else [example.inputs]
    if model.task is not None and model.answer not in ("vector", "sparse_vector"):
        return _of_task(predictor, model.task, given, texts)
    of_text = [each for each in given if isinstance(each, str)]
    if model.answer == "word":
        return _of_words(predictor, model.max_length, [*of_text, *texts])
    return _of_vectors(predictor, model, [*of_text, *texts])


def _of_task(
    predictor: Predictor, task: Task, given: Sequence[Inputs], texts: Sequence[str]
) -> Reference:
    query = query_of(task, AnswerOptions(overflow="right"))
    asked = [[each] for each in given] + [_forms(text) for text in texts]
    read = [[query.read(form) for form in forms] for forms in asked]
    examples = [next(each for each in forms if each is not None) for forms in read if any(forms)]
    rows = query.codec.encode(examples, predictor.tokenizer)
    outputs, _ = compute_all_outputs(task, predictor.model, rows, device=predictor.device)

    def answers(found: FloatArray) -> list[dict[str, Any]]:
        return [query.fields(each) for each in query.codec.decode(found, rows, examples)]

    first = next(form for forms in asked for form in forms if query.read(form) is not None)
    return Reference(first, rows, outputs, answers)


def _of_words(predictor: Predictor, max_length: int, texts: Sequence[str]) -> Reference:
    codec = FillMask(predictor.tokenizer, max_length, top_k=1, overflow="right")
    masked = [text if MASK in text else _masked(text) for text in texts]
    rows = codec.encode(masked, predictor.tokenizer)
    outputs = masked_token_outputs(predictor.model, rows, **_computing(predictor))
    return Reference(masked[0], rows, outputs, lambda found: codec.decode(found, rows, masked))


def _of_vectors(predictor: Predictor, model: PaddedModel, texts: Sequence[str]) -> Reference:
    pooling, computing = model.pooling, _computing(predictor)
    choice = FeatureChoice(pooling=pooling.pooling, max_length=model.max_length)
    extractor = Extractor(predictor.model.encoder, predictor.tokenizer, choice=choice, **computing)
    rows = extractor.encode(texts, "right").rows
    if model.answer == "sparse_vector":
        outputs = word_weight_outputs(predictor.model, rows.rows, **computing)
    else:
        outputs = pooling.finish(extractor.of_rows(rows), normalize=True)
    return Reference(texts[0], rows.rows, outputs, None)


def _computing(predictor: Predictor) -> Computing:
    return {
        "device": predictor.device,
        "max_tokens": predictor.max_tokens,
        "autocast_dtype": predictor.autocast_dtype,
    }


_MOST_WORDS = 512
"""A graph's attention takes time and memory in the square of a length: 8,192 would take hours."""


def example_texts(longest: int) -> list[str]:
    """Texts of 1 word up to so many, 512 at most, in mixed lengths: the same ones each time."""
    most_words = min(longest, _MOST_WORDS)
    words = " ".join(read_documentation(_SOURCE, Counter())).split()
    sizes = np.geomspace(1, most_words, NUM_TEXTS).round().astype(int)
    draw = np.random.default_rng(0)
    starts = draw.integers(0, len(words) - most_words, NUM_TEXTS)
    both = zip(starts.tolist(), draw.permutation(sizes).tolist(), strict=True)
    return [" ".join(words[start : start + size]) for start, size in both]


def _forms(text: str) -> list[Inputs]:
    """The inputs that a text makes for tasks of any kind; the first that a task reads counts."""
    words = text.split()
    first = " ".join(words[: -(-len(words) // 3)])
    rest = " ".join(words[-(-len(words) // 3) :]) or first
    return [
        text,
        {"text": first, "text_pair": rest},
        {"question": first, "context": rest},
        {"context": first, "choices": [rest, first]},
    ]


def _masked(text: str) -> str:
    """A text with [MASK] for a word in its first half, which is read of long texts too."""
    words = text.split()
    words[len(words) // 3] = MASK
    return " ".join(words)
