"""A model's example as a question to it: the file's inputs -> rows, the model's outputs -> answer.

Shapes: N texts, P places, L outputs of a head, H hidden size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer

from bert_core.errors import UserError
from bert_core.example import EXAMPLE, ModelExample
from bert_core.features.states import states_at_places
from bert_core.features.units import cut_texts, default_pooling, unit_rows
from bert_core.model.bert import Bert
from bert_core.model_folder import CONFIG, load_model_folder
from bert_core.pretrained.fill_mask import FillMask
from bert_core.pretrained.heads import masked_token_answers
from bert_core.quantization import for_inference, read_precision
from bert_core.strict_json import read_json_object
from bert_core.tasks.answers import Codec, answered, answering, classified, tagged
from bert_core.tasks.catalog import task_of
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.multiple_choice import Choices, MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import FloatArray, Task, head_answers, layers_read
from bert_core.tasks.text_tagging import TextTagging

VECTOR_NUMBERS = 16
"""How many numbers of a vector an example has."""

Source = Literal["task", "masked_token", "states"]
"""What the outputs are: those of the task's head, of the masked-token head, or the last states."""


@dataclass(frozen=True)
class ExampleQuestion:
    """What is asked: `codec` makes rows of `item`, and of the outputs at their places a prediction.

    `source` says what the outputs are, `fields` what of the prediction is the answer.
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
        case "classify", str(text), Classification():
            return _of_task(Text(text, None, None), _cutting(task), classified)
        case "classify", {"text": str(first), "text_pair": str(second)}, Classification():
            return _of_task(Text(first, second, None), _cutting(task), classified)
        case "ner", str(text), Tagging():
            return _of_task(text, TextTagging(task, overflow="right"), tagged)
        case "qa", {"question": str(question), "context": str(context)}, QuestionAnswering():
            asked = answering(task, overflow="right")
            return _of_task(Question("", question, context, None), asked, answered)
        case "choose", {"context": str(context), "choices": list(choices)}, MultipleChoice():
            return _of_task(Choices(context, tuple(choices), None), task, dict)
        case "fill-mask", str(text), None:
            codec = FillMask(tokenizer, max_length, overflow="right")
            return ExampleQuestion(text, codec, "masked_token", dict)
        case "features", str(text), None:
            return ExampleQuestion(text, MeanVectors(max_length), "states", _beginning)
    raise UserError(
        "an example of another kind of model",
        f"{EXAMPLE} with {example.kind}",
        "restore the file, or export the model again",
    )


def outputs_of(model: Bert, question: ExampleQuestion, rows: EncodedRows) -> FloatArray:
    """What a model says at the places of a question's rows, [P, L]; without dropout."""
    is_task = question.source == "task"
    layers = layers_read(model) if is_task else (model.config.num_hidden_layers,)
    was_training = model.training
    model.eval()
    try:
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
    finally:
        model.train(was_training)
    return outputs.float().cpu().numpy()


def answer_of(folder: Path, example: ModelExample) -> dict[str, Any]:
    """What a model folder answers to an example, on the CPU, in the numbers that the folder says.

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


def _of_task(
    item: object, codec: Codec, fields: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> ExampleQuestion:
    return ExampleQuestion(item, codec, "task", fields)


def _cutting(task: Classification) -> Classification:
    return task.model_copy(update={"overflow": "right"})


def _beginning(found: Mapping[str, Any]) -> dict[str, Any]:
    return {"vector": found["vector"][:VECTOR_NUMBERS]}
