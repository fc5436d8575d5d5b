"""Questions of one request -> rows -> micro-batches of the models -> answers.

What is asked is encoded and decoded by `bert_core`, as offline; between the two stands a `Batcher`.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from tokenizers import Encoding

from bert_core.features.extractor import FeatureChoice
from bert_core.memory import give_back_memory
from bert_core.tasks.answers import Codec
from bert_core.tasks.classification import Classification
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import FloatArray, Task
from bert_core.tasks.windows import Overflow
from serving.batching import Batcher, Work
from serving.inputs import Inputs, has_more_tokens, texts_in
from serving.limits import Limits
from serving.metrics import Metrics
from serving.models import Products, ServedModel, close_models, load_models, warm_up
from serving.pointers import Pointer
from serving.problems import TOO_LONG, RequestError
from serving.request_context import current_request
from serving.schemas.fields import OverflowOrError
from serving.text_features import (
    EncodedTexts,
    TextFeatures,
    decode_features,
    decode_states,
    encode_texts,
)

T = TypeVar("T")
KindOfTask = TypeVar("KindOfTask", bound=Task)

_QUICK_CHARACTERS = 8192
"""Texts of so many are encoded at once, on the event loop: a thread costs more than it saves."""
_QUICK_TOKENS = 2048


_WORDS_FOR: dict[type[Task], str] = {
    Classification: "classification",
    Tagging: "named entities",
    QuestionAnswering: "question answering",
}
"""Kinds of tasks, as a client calls them."""

_NAME_ONE = "name one in model; in the routes of Hugging Face and TEI, with ?model=NAME"


@dataclass(frozen=True)
class Prediction:
    """What was found for one item, as the task's `decode` has it, and how much of it was read."""

    found: dict[str, Any]
    num_tokens: int
    truncated: bool


class Engine:
    """Models by name, and what is asked of them."""

    def __init__(self, models: Mapping[str, ServedModel], limits: Limits | None = None) -> None:
        self.models = models
        self.limits = limits or Limits()
        self.metrics = Metrics()
        batchers = _models_of_batchers(models)
        self._batchers = list(batchers)
        for batcher, names in batchers.items():
            self.metrics.watch("+".join(names), batcher)
        encoders = {(id(each.batcher), each.tokenizer.to_str()) for each in models.values()}
        self._have_one_encoder = len(encoders) == 1
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long-texts")

    @classmethod
    def of_folders(
        cls,
        folders: Mapping[str, Path | Pointer],
        device: torch.device,
        limits: Limits,
        num_threads: int,
        precision: Products = "float32",
    ) -> Self:
        """Opens model folders by name, and has each compute once, so that nobody waits for that.

        On the CPU so many threads compute, each a micro-batch of its own, by itself: torch's own
        threads, which would share in each product, are set to one. Raises `UserError` for a folder
        that is damaged.
        """
        on_cpu = device.type == "cpu"
        if on_cpu:
            torch.set_num_threads(1)
        models = load_models(
            folders,
            device=device,
            max_tokens=limits.max_batch_tokens,
            max_waiting_tokens=limits.max_waiting_tokens,
            num_threads=num_threads if on_cpu else 1,
            autocast_dtype=torch.bfloat16 if precision == "bfloat16" else None,
        )
        for each in models.values():
            warm_up(each)
        give_back_memory()  # the weights as they were read
        return cls(models, limits)

    def check_room(self) -> None:
        """Raises `OverloadedError` where every encoder turns away whatever comes."""
        if all(each.is_full for each in self._batchers):
            self._batchers[0].check_room()

    def close(self) -> None:
        """Ends the threads of the encoders, each with the micro-batch that it is at."""
        close_models(list(self.models.values()), finish=False)

    def find(self, name: str | None, kind: type[KindOfTask]) -> tuple[ServedModel, KindOfTask]:
        """The model of this name, or the only one with such a task, and its task.

        Raises `RequestError` where there is none, or more than one to choose from.
        """
        able = {key: each for key, each in self.models.items() if isinstance(each.task, kind)}
        model = self._choose(name, able, _WORDS_FOR[kind])
        assert isinstance(model.task, kind)
        return model, model.task

    def find_encoder(self, name: str | None) -> ServedModel:
        """The model of this name, or any where all have one encoder and one vocabulary."""
        if name is None and self._have_one_encoder:
            return _noted(next(iter(self.models.values())))
        return self._choose(name, self.models, "features")

    def find_any(self, name: str | None) -> ServedModel:
        """The model of this name, or the only one."""
        return self._choose(name, self.models, "this")

    def find_embedder(self, name: str | None) -> ServedModel:
        """The model of this name, or the only one that was not fine-tuned to another task."""
        plain = [each for each in self.models.values() if each.task is None]
        if name is None and len(plain) == 1:
            return _noted(plain[0])
        return self.find_encoder(name)

    def find_with_head(self, name: str | None, head: str) -> ServedModel:
        """The model of this name, or the only one, that has a head of pre-training."""
        able = {key: each for key, each in self.models.items() if head in each.model.heads}
        return self._choose(name, able, head.replace("_", " "))

    def _choose(self, name: str | None, able: Mapping[str, ServedModel], what: str) -> ServedModel:
        names = ", ".join(able) or "none"
        if name is not None and name not in self.models:
            known = ", ".join(self.models)
            raise RequestError(
                404, "Unknown model", f"no model {name!r}", field="model", remedy=f"one of {known}"
            )
        if name is not None and name not in able:
            raise RequestError(
                422,
                "Wrong model",
                f"{name} is no model for {what}",
                field="model",
                remedy=f"those that are: {names}",
            )
        if name is not None:
            return _noted(able[name])
        if len(able) != 1:
            raise RequestError(
                422 if able else 404,
                "Which model?" if able else "No such model",
                f"models for {what}: {names}",
                field="model",
                remedy=_NAME_ONE if able else f"start the server with a model for {what}",
            )
        return _noted(next(iter(able.values())))

    async def ask(
        self,
        model: ServedModel,
        codec: Codec,
        inputs: Inputs,
        overflow: OverflowOrError,
        work_of: Callable[[EncodedRows], Work] | None = None,
    ) -> list[Prediction]:
        """A prediction for each item, by the head of the model's task unless `work_of` is another.

        With the overflow `error` the codec cuts, and what was cut is refused. Raises
        `RequestError`, `OverloadedError` or `DeadlineError`.
        """
        is_long = self._check_size(inputs)
        rows = await self._run(is_long, partial(codec.encode, inputs.items, model.tokenizer))
        self._check_rows(rows, rows.truncated, inputs, model, overflow)
        work = (work_of or model.work)(rows)
        self._check_numbers(len(rows.places), work.width)
        (outputs,) = await self._compute(model, work)
        found = await self._run(
            len(rows.input_ids) > _QUICK_TOKENS, partial(codec.decode, outputs, rows, inputs.items)
        )
        self.metrics.count_truncated(model.name, rows.num_truncated)
        return [
            Prediction(each, num_tokens, truncated)
            for each, num_tokens, truncated in zip(
                found, rows.num_tokens.tolist(), rows.truncated.tolist(), strict=True
            )
        ]

    async def features(
        self, model: ServedModel, choice: FeatureChoice, inputs: Inputs, overflow: OverflowOrError
    ) -> list[TextFeatures]:
        """The features of each text."""
        encoded = await self._encode(model, choice, inputs, overflow)
        extractor, rows = model.extractor(choice), encoded.rows
        self._check_numbers(rows.num_units, extractor.feature_size)
        states = await self._compute(model, model.feature_work(rows.rows, choice))
        is_long = len(rows.units) > _QUICK_TOKENS
        return await self._run(is_long, partial(decode_features, extractor, encoded, states))

    async def token_states(
        self, model: ServedModel, choice: FeatureChoice, inputs: Inputs, overflow: OverflowOrError
    ) -> list[TextFeatures]:
        """The states of all tokens of each text, special ones too; a text is one row."""
        assert choice.unit == "text" and overflow != "window"
        encoded = await self._encode(model, choice, inputs, overflow)
        rows = encoded.rows
        self._check_numbers(len(rows.units), model.config.hidden_size)
        (states,) = await self._compute(model, model.feature_work(rows.rows, choice))
        return decode_states(encoded, states)

    async def _encode(
        self, model: ServedModel, choice: FeatureChoice, inputs: Inputs, overflow: OverflowOrError
    ) -> EncodedTexts:
        is_long = self._check_size(inputs)
        encode = partial(encode_texts, model.extractor(choice), inputs.items, overflow)
        encoded = await self._run(is_long, encode)
        self._check_rows(encoded.rows.rows, encoded.too_long, inputs, model, overflow)
        if encoded.is_cut:
            self.metrics.count_truncated(model.name, int(encoded.too_long.sum()))
        return encoded

    async def cut(
        self, model: ServedModel, inputs: Inputs, add_special_tokens: bool
    ) -> list[Encoding]:
        """The tokens of each text."""
        is_long = self._check_size(inputs)
        encode = partial(
            model.tokenizer.encode_batch, inputs.items, add_special_tokens=add_special_tokens
        )
        found = await self._run(is_long, encode)
        self._check_tokens(sum(map(len, found)))
        return found

    async def run_apart(self, function: Callable[[], T]) -> T:
        """Calls a function that computes by itself, off the event loop, one at a time."""
        return await self._run(True, function)

    async def _compute(self, model: ServedModel, work: Work) -> list[FloatArray]:
        request = current_request.get()
        if request is not None:
            request.num_tokens += work.num_tokens
            if request.payer is not None:
                request.payer.pay(work.num_tokens)
        future = model.batcher.submit(work, self.limits.deadline_seconds)
        return await asyncio.wrap_future(future)

    async def _run(self, is_long: bool, function: Callable[[], T]) -> T:
        """Calls a function, off the event loop if that would keep others waiting."""
        if not is_long:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _check_size(self, inputs: Inputs) -> bool:
        """Whether the texts are long, so that others would wait for what is done to them.

        Raises `RequestError` for too many items, and for texts that are sure to have too many
        tokens: nothing is done to them.
        """
        if len(inputs.items) > self.limits.max_items:
            raise RequestError(
                413,
                "Too many items",
                f"{len(inputs.items)} items, and a request has {self.limits.max_items} at most",
                field="inputs",
                remedy="divide them among several requests",
            )
        texts = [text for item in inputs.items for text in texts_in(item)]
        size = sum(map(len, texts))
        most = self.limits.max_request_tokens
        if size > most and has_more_tokens(texts, most):
            raise _too_many_tokens(f"more than {most} tokens", most)
        return size > _QUICK_CHARACTERS

    def _check_rows(
        self,
        rows: EncodedRows,
        too_long: np.ndarray,
        inputs: Inputs,
        model: ServedModel,
        overflow: OverflowOrError,
    ) -> None:
        if overflow == "error" and too_long.any():
            number = int(too_long.argmax())
            raise RequestError(
                422,
                TOO_LONG,
                f"{rows.num_tokens[number]} tokens are more than {model.name} reads at once",
                field=inputs.name_of(number),
                remedy=inputs.if_too_long,
            )
        self._check_tokens(len(rows.input_ids))

    def _check_tokens(self, num_tokens: int) -> None:
        most = self.limits.max_request_tokens
        if num_tokens > most:
            raise _too_many_tokens(f"{num_tokens} tokens", most)

    def _check_numbers(self, num_units: int, size: int) -> None:
        if num_units * size > self.limits.max_answer_numbers:
            raise RequestError(
                413,
                "Too long an answer",
                f"{num_units} times {size} numbers,"
                f" and what a request asks for has {self.limits.max_answer_numbers} at most",
                field="inputs",
                remedy="divide them among several requests; of features, ask for texts, not tokens",
            )


def _too_many_tokens(found: str, most: int) -> RequestError:
    return RequestError(
        413,
        "Too many tokens",
        f"{found}, and a request has {most} at most",
        field="inputs",
        remedy="divide them among several requests",
    )


def _noted(model: ServedModel) -> ServedModel:
    """The model, of which the request that is worked on takes note."""
    request = current_request.get()
    if request is not None:
        request.model = model.name
    return model


def _models_of_batchers(models: Mapping[str, ServedModel]) -> dict[Batcher, list[str]]:
    found: dict[Batcher, list[str]] = {}
    for name, each in models.items():
        found.setdefault(each.batcher, []).append(name)
    return found


def check_pairs(inputs: Inputs, task: Classification, name: str) -> None:
    """Raises `RequestError` for a pair where the model reads single texts, and the reverse."""
    wants_pairs = task.second_column is not None
    for number, each in enumerate(inputs.items):
        if (each.second is not None) != wants_pairs:
            raise RequestError(
                422,
                "Wrong input",
                f"{name} reads {'pairs of texts' if wants_pairs else 'single texts'}",
                field=inputs.name_of(number),
                remedy="give a second text too" if wants_pairs else "give one text, as a string",
            )


def cutting(overflow: OverflowOrError) -> Overflow:
    """How a codec encodes: where too long a text is an error, it cuts, which is then noticed."""
    return "right" if overflow == "error" else overflow
