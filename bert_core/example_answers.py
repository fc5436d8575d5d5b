"""The example in a model folder: chooses it, encodes it as a question, and decodes the answer.

The example chosen is the one that the model answers with the largest margin, because another
machine may decide a close call differently.
Shapes: N texts, P places, L outputs of a head, H hidden size.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer

from bert_core.errors import UserError
from bert_core.example import EXAMPLE, TOLERANCES, Inputs, Kind, ModelExample
from bert_core.features.states import states_at_places
from bert_core.features.units import cut_texts, default_pooling, unit_rows
from bert_core.masked_language_model import FillMask, masked_token_answers
from bert_core.model.bert import Bert
from bert_core.model.encoder import without_dropout
from bert_core.model_folder import CONFIG, load_model_folder
from bert_core.quantization import for_inference, read_precision
from bert_core.special_tokens import special_token_ids, special_tokens
from bert_core.strict_files import read_json_object
from bert_core.tasks.answers import AnswerOptions, Codec, query_of
from bert_core.tasks.catalog import task_of
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.multiple_choice import Choices, MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.reranking import Candidates, Reranking
from bert_core.tasks.squad import Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import FloatArray, Task, head_answers, layers_read
from bert_core.tasks.text_embedding import TextEmbedding
from bert_core.text.shards import TokenShards
from bert_core.word_marks import begins_word, word_marks

VECTOR_NUMBERS = 16
"""How many numbers of a vector an example has."""

Source = Literal["task", "masked_token", "states"]
"""What the outputs are: those of the task's head, of the masked-token head, or the last states."""


_TASKS: dict[Kind, tuple[type[Task], ...]] = {
    "classify": (Classification, Reranking),
    "ner": (Tagging,),
    "qa": (QuestionAnswering,),
    "choose": (MultipleChoice,),
}


@dataclass(frozen=True)
class ExampleQuestion:
    """Turns `item` into rows with `codec`, and outputs at their places into an answer.

    `source` names the outputs, `fields` selects the answer from the prediction.
    """

    item: Any
    codec: Codec
    source: Source
    fields: Callable[[Mapping[str, Any]], dict[str, Any]]

    def rows(self, tokenizer: Tokenizer) -> EncodedRows:
        """The rows of the question."""
        return self.codec.encode([self.item], tokenizer)

    def answer(self, outputs: FloatArray, rows: EncodedRows) -> dict[str, Any]:
        """The answer that is compared with the example's, given the outputs [P, L] of the rows."""
        return self.fields(self.codec.decode(outputs, rows, [self.item])[0])


@dataclass(frozen=True)
class MeanVectors:
    """Asks for the mean of a text's last states, as features are by default."""

    max_length: int

    def encode(self, examples: Sequence[str], tokenizer: Tokenizer) -> EncodedRows:
        """The rows of texts, each token a place."""
        tokens = cut_texts(tokenizer, examples, offsets=False)
        pooling = default_pooling("text")
        length = self.max_length
        return unit_rows(tokens, tokenizer, unit="text", pooling=pooling, max_length=length).rows

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[str]
    ) -> list[dict[str, Any]]:
        """The `vector` of each text, given states [P, H]."""
        text = np.repeat(rows.example, rows.place_counts)
        return [
            {"vector": outputs[text == number].mean(axis=0).tolist()}
            for number in range(len(examples))
        ]


def question_of(
    example: ModelExample, task: Task | None, tokenizer: Tokenizer, max_length: int
) -> ExampleQuestion:
    """The question of an example to the model of a task, or to one that was not fine-tuned.

    `max_length` is the longest row of one that was not. Raises `UserError` for an example that is
    none of such a model.
    """
    match example.kind, example.inputs, task:
        case "fill-mask", str(text), None:
            codec = FillMask(tokenizer, max_length, overflow="right")
            return ExampleQuestion(text, codec, "masked_token", dict)
        case "features", str(text), None | TextEmbedding():
            return ExampleQuestion(text, MeanVectors(max_length), "states", _beginning)
        case kind, inputs, Task() if isinstance(task, _TASKS.get(kind, ())):
            query = query_of(task, AnswerOptions(overflow="right"))
            item = query.read(inputs)
            if item is not None:
                return ExampleQuestion(item, query.codec, "task", query.fields)
    raise UserError(
        "the example is of another kind of model",
        f"{EXAMPLE} with {example.kind}",
        "restore the file, or export the model again",
    )


def outputs_of(model: Bert, question: ExampleQuestion, rows: EncodedRows) -> FloatArray:
    """Computes a model's outputs [P, L] at the places of a question's rows, without dropout."""
    is_task = question.source == "task"
    layers = layers_read(model) if is_task else (model.config.num_hidden_layers,)
    with without_dropout(model):
        ((_, batch, states),) = states_at_places(
            model.encoder,
            rows,
            layers,
            device=model.encoder.word_embeddings.device,
            max_tokens=len(rows.input_ids),
            autocast_dtype=None,
        )
        counts = batch.place_counts.to(states[0].device)
        with torch.inference_mode():
            if is_task:
                outputs = head_answers(model, states, counts)
            elif question.source == "masked_token":
                outputs = masked_token_answers(model, states, counts)
            else:
                (outputs,) = states
    return outputs.float().cpu().numpy()


def answer_of(folder: Path, example: ModelExample) -> dict[str, Any]:
    """Returns a model folder's answer to an example, on the CPU, in the folder's precision.

    Raises `UserError` for a folder that is damaged, and for an example of another kind of model.
    """
    _, model, tokenizer = load_model_folder(folder)
    known = task_of(read_json_object(folder / CONFIG))
    model = for_inference(model, read_precision(folder), torch.device("cpu"))
    longest = model.config.max_position_embeddings
    question = question_of(example, known[1] if known else None, tokenizer, longest)
    rows = question.rows(tokenizer)
    return question.answer(outputs_of(model, question, rows), rows)


def answered_by(folder: Path, example: ModelExample) -> ModelExample:
    """The example with the answer that a model folder gives to it; raises as `answer_of` does."""
    return example.answered(answer_of(folder, example), read_precision(folder))


def _beginning(found: Mapping[str, Any]) -> dict[str, Any]:
    return {"vector": found["vector"][:VECTOR_NUMBERS]}


_READ = 256
"""Of so many texts those are asked about whose length is nearest to the wanted one."""
_ASKED = 8
_CHARACTERS = 100
"""The wanted length, of all texts of an example together."""
_LONGEST = 600
"""What a text is cut to, where there are none but long ones."""
_TOKENS = range(6, 25)
"""Of a sentence of pre-training."""


def example_of_task(
    model: Bert, tokenizer: Tokenizer, task: Task, examples: Iterable[Any]
) -> ModelExample | None:
    """The example of a fine-tuned model in float32, one of the first of a task's examples.

    None for a task of another kind, and where none has an answer in numbers that are finite.
    """
    if isinstance(task, TextEmbedding):
        texts = (example.texts[0] for example in islice(examples, _READ))
        return _surest(model, tokenizer, None, [("features", text) for text in texts])
    given = (_inputs_of(task, example) for example in islice(examples, _READ))
    return _surest(model, tokenizer, task, [each for each in given if each is not None])


def example_of_encoder(
    model: Bert, tokenizer: Tokenizer, heldout: TokenShards
) -> ModelExample | None:
    """The example of a pre-trained model in float32, one of the first held-out sentences.

    Asked are a [MASK] in it, or its features where there is no head for that. None where no
    sentence will do.
    """
    kind: Kind = "fill-mask" if "masked_token" in model.heads else "features"
    longest = model.config.max_position_embeddings - 2
    sentences = islice(_sentences(heldout, tokenizer, longest), _READ)
    texts = [_text(tokenizer, ids, masked=kind == "fill-mask") for ids in sentences]
    return _surest(model, tokenizer, None, [(kind, text) for text in texts if text])


def _surest(
    model: Bert, tokenizer: Tokenizer, task: Task | None, asked: list[tuple[Kind, Inputs]]
) -> ModelExample | None:
    nearest = sorted(asked, key=lambda each: abs(_size(each[1]) - _CHARACTERS))[:_ASKED]
    found = [_answered(model, tokenizer, task, *each) for each in nearest]
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: each[0])[1] if known else None


def _answered(
    model: Bert, tokenizer: Tokenizer, task: Task | None, kind: Kind, inputs: Inputs
) -> tuple[tuple[bool, float], ModelExample] | None:
    """The example with these inputs, and how sure its answer is."""
    example = ModelExample(
        kind=kind, inputs=inputs, answer={}, precision="float32", tolerance=TOLERANCES["float32"]
    )
    size = _LONGEST
    while True:  # until it fits in a row
        example = example.model_copy(update={"inputs": _cut(inputs, size)})
        question = question_of(example, task, tokenizer, model.config.max_position_embeddings)
        rows = question.rows(tokenizer)
        if not rows.truncated.any() and rows.num_items <= 1:
            break
        size //= 2
    if not len(rows.places):
        return None
    outputs = outputs_of(model, question, rows)
    if not np.isfinite(outputs).all():
        return None
    found = question.codec.decode(outputs, rows, [question.item])[0]
    answered = example.answered(question.fields(found), example.precision)
    return _certainty(question, outputs, found), answered


def _certainty(
    question: ExampleQuestion, outputs: FloatArray, found: Mapping[str, Any]
) -> tuple[bool, float]:
    """Whether there is an answer at all, and by how much it is surer than the next, in 0..1."""
    if question.source == "states" or "value" in found:
        return True, 0.0
    if "labels" in found or getattr(question.codec, "thresholds", {}):
        assert isinstance(question.codec, Classification)
        names = question.codec.labels if "labels" in found else question.codec.thresholds
        limits = {name: question.codec.threshold_of(name) for name in names}
        return True, min(abs(2 * (found["scores"][name] - limits[name])) for name in limits)
    if isinstance(question.codec, QuestionAnswering):
        likeliest = sorted((each["probability"] for each in found["n_best"]), reverse=True)
        margin = likeliest[0] - sum(likeliest[1:2])
        if question.codec.no_answer:
            margin = min(margin, abs(found["null_score"] - question.codec.null_threshold))
        return bool(found["text"]), margin
    # The outputs of choices are those of one decision; else each place is one.
    logits = torch.from_numpy(outputs.T if "choice" in found else outputs).double()
    best, next_best = logits.softmax(1).topk(2, dim=1).values.unbind(1)
    return bool(found.get("entities", True)), float((best - next_best).min())


def _inputs_of(task: Task, example: object) -> tuple[Kind, Inputs] | None:
    """The HTTP inputs for a task's example; None where there are none, or they are empty."""
    match task, example:
        case Classification(), Text(first, None) if first.strip():
            return "classify", first
        case Classification(), Text(first, str(second)) if first.strip() and second.strip():
            return "classify", {"text": first, "text_pair": second}
        case Reranking(), Candidates(query, [passage, *_]):
            return "classify", {"text": query, "text_pair": passage}
        case Tagging(), TaggedSentence(words):
            return "ner", " ".join(words)
        case QuestionAnswering(), Question(_, question, context):
            return "qa", {"question": question, "context": context}
        case MultipleChoice(), Choices(context, choices):
            return "choose", {"context": context, "choices": list(choices)}
    return None


def _cut(inputs: Inputs, size: int) -> Inputs:
    """Texts of at most `size` characters each, cut between words where there are spaces."""
    if isinstance(inputs, dict):
        return {
            name: [_cut_text(text, size) for text in each]
            if isinstance(each, list)
            else _cut_text(each, size)
            for name, each in inputs.items()
        }
    return _cut_text(inputs, size)


def _cut_text(text: str, size: int) -> str:
    if len(text) <= size:
        return text
    return text[: size + 1].rpartition(" ")[0] or text[:size]


def _size(inputs: Inputs) -> int:
    texts = inputs.values() if isinstance(inputs, dict) else [inputs]
    return sum(sum(map(len, text)) for text in texts)


def _sentences(shards: TokenShards, tokenizer: Tokenizer, longest: int) -> Iterator[list[int]]:
    """The ids of sentences that are neither short nor long, and have no unknown token."""
    unknown = special_token_ids(tokenizer).unk
    for shard in shards.shards:
        for begin, end in pairwise(shard.sentences):
            if end - begin in _TOKENS and end - begin <= longest:
                ids = shard.tokens[begin:end].tolist()
                if unknown not in ids:
                    yield ids


def _text(tokenizer: Tokenizer, ids: list[int], *, masked: bool) -> str:
    """A sentence, with [MASK] for the whole word nearest to its middle; empty without any."""
    if not masked:
        return tokenizer.decode(ids)
    begins = begins_word(np.array(ids), word_marks(tokenizer)).tolist()
    words = [
        place
        for place, (is_begun, ends) in enumerate(pairwise([*begins, True]))
        if is_begun and ends and tokenizer.decode([ids[place]]).strip().isalpha()
    ]
    if not words:
        return ""
    place = min(words, key=lambda each: abs(each - len(ids) // 2))
    masked_ids = [*ids[:place], special_token_ids(tokenizer).mask, *ids[place + 1 :]]
    mask = special_tokens(tokenizer).mask
    text = tokenizer.decode(masked_ids, skip_special_tokens=False)
    before, _, behind = text.partition(mask)  # bytes have no space before it
    return f"{before.rstrip()} {mask}{behind}".lstrip()
