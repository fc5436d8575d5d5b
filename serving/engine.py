"""Questions of one request -> rows -> micro-batches of the models -> answers.

What is asked is encoded and decoded by `bert_core`, as offline; between the two stands a `Batcher`.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from tokenizers import Encoding

from bert_core.features.extractor import FeatureChoice
from bert_core.tasks.answers import Codec
from bert_core.tasks.classification import Classification
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.sequences import Overflow, TooManyTokensError
from bert_core.tasks.task import FloatArray, Task
from serving.batching import Work
from serving.drift import DriftFigures
from serving.followed import Followed, Place
from serving.inputs import Inputs, check_texts, is_cut_into_more, texts_in, too_many_tokens
from serving.limits import Limits
from serving.metrics import Metrics
from serving.models import ModelLoader, ServedModel
from serving.problems import TOO_LONG, RequestError
from serving.request_context import current_request
from serving.schemas.fields import OverflowOrError
from serving.shadowing import Agreement, Shadowing
from serving.text_features import (
    EncodedTexts,
    TextFeatures,
    decode_features,
    decode_states,
    encode_ids,
    encode_texts,
)
from serving.tracing import computing, span
from serving.traffic import Role, Share, Traffic

T = TypeVar("T")
KindOfTask = TypeVar("KindOfTask", bound=Task)

_QUICK_CHARACTERS = 8192
"""Texts of so many are encoded at once, on the event loop: a thread costs more than it saves."""
_QUICK_TOKENS = 2048
_QUICK_NUMBERS = 65536
"""What a model answers is read, and written, off the event loop where it has more numbers."""

_NUMBERS_OF_A_TOKEN = 5
"""What a token's id, text and place take to write."""

_SURE_CHARACTERS = 8
"""Texts with more for each token that a request may have are looked at more closely."""


@dataclass(frozen=True)
class Prediction:
    """What was found for one item, as the task's `decode` has it, and how much of it was read."""

    found: dict[str, Any]
    num_tokens: int
    truncated: bool


class Engine:
    """Models by name, and what is asked of them."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        limits: Limits | None = None,
        loader: ModelLoader | None = None,
    ) -> None:
        self.traffic = Traffic(models)
        self.limits = limits or Limits()
        self.loader = loader or ModelLoader()
        self.metrics = Metrics()
        self.followed: dict[Place, Followed] = {}
        self.drift = DriftFigures(self.metrics.registry)
        for each in models.values():
            self.drift.add(each)
        self._watch_batchers()
        self._shadowing = Shadowing(self.metrics)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long-texts")
        self._apart = ThreadPoolExecutor(1, thread_name_prefix="long-answers")

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """The model that answers each name, as of now."""
        return self.traffic.models

    def switch(self, model: ServedModel) -> ServedModel:
        """Has a model answer its name from now on; gives the one that did before, to be retired."""
        self.drift.add(model)
        before = self.traffic.switch(model)
        self._watch_batchers()
        return before

    def set_beside(self, name: str, role: Role, share: Share | None) -> ServedModel | None:
        """As `Traffic.set_beside`."""
        if share is not None:
            self.drift.add(share.model)
        before = self.traffic.set_beside(name, role, share)
        self._watch_batchers()
        return before

    def retire(self, model: ServedModel, seconds: float) -> bool:
        """As `Traffic.retire`."""
        have_ended = self.traffic.retire(model, seconds)
        self.drift.remove(model)
        self.metrics.keep_versions(self.traffic.answering)
        return have_ended

    def agreement(self, shadow: ServedModel) -> Agreement:
        """As `Shadowing.agreement`."""
        return self._shadowing.agreement(shadow)

    def _watch_batchers(self) -> None:
        """Has the metrics count what the encoders of now compute."""
        batchers = self.traffic.batchers.items()
        self.metrics.watch({"+".join(names): batcher for batcher, names in batchers})

    def check_room(self) -> None:
        """Raises `OverloadedError` where every encoder turns away whatever comes."""
        batchers = self.traffic.batchers
        if all(each.is_full for each in batchers):
            next(iter(batchers)).check_room()

    def check_health(self) -> None:
        """Raises `RuntimeError` where an encoder computes no more: its thread has ended, or hangs.

        It hangs where a micro-batch should have ended a whole deadline ago.
        """
        for each in self.traffic.batchers:
            if not each.is_alive:
                raise RuntimeError("an encoder's thread has ended")
            if each.overdue.seconds > self.limits.deadline_seconds:
                raise RuntimeError("an encoder hangs")

    def close(self) -> None:
        """Ends the threads of the encoders, each with the micro-batch that it is at."""
        for each in self.traffic.batchers_in_use:
            each.close(finish=False)
        self._shadowing.close()

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
        rows = await self._encode(
            model, inputs, partial(codec.encode, inputs.items, model.tokenizer)
        )
        self._check_rows(rows, rows.truncated, inputs, model, overflow)
        work = (work_of or model.work)(rows)
        self._check_numbers(len(rows.places), work.width)
        (outputs,) = await self._compute(model, work)
        is_long = len(rows.input_ids) > _QUICK_TOKENS or outputs.size > _QUICK_NUMBERS
        with span("decode"):
            found = await self._run(is_long, partial(codec.decode, outputs, rows, inputs.items))
        self.metrics.count_truncated(model.name, rows.num_truncated)
        self.drift.note(model, rows, found if work_of is None else None)
        shadow = self.traffic.shadow_of(model) if work_of is None else None
        if shadow is not None:
            seconds = self.limits.deadline_seconds
            self._shadowing.compare(shadow, codec, inputs.items, found, seconds)
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
        encoded = await self._encode_texts(model, choice, inputs, overflow)
        extractor, rows = model.extractor(choice), encoded.rows
        self._check_numbers(rows.num_units, extractor.feature_size)
        states = await self._compute(model, model.feature_work(rows.rows, choice))
        self.drift.note(model, rows.rows, None)
        is_long = len(rows.units) > _QUICK_TOKENS or self.answer_is_long
        with span("decode"):
            return await self._run(is_long, partial(decode_features, extractor, encoded, states))

    async def token_states(
        self, model: ServedModel, choice: FeatureChoice, inputs: Inputs, overflow: OverflowOrError
    ) -> list[TextFeatures]:
        """The states of all tokens of each text, special ones too; a text is one row."""
        assert choice.unit == "text" and overflow != "window"
        encoded = await self._encode_texts(model, choice, inputs, overflow)
        rows = encoded.rows
        self._check_numbers(len(rows.units), model.config.hidden_size)
        (states,) = await self._compute(model, model.feature_work(rows.rows, choice))
        self.drift.note(model, rows.rows, None)
        with span("decode"):
            return decode_states(encoded, states)

    async def _encode(self, model: ServedModel, inputs: Inputs, encode: Callable[[], T]) -> T:
        """What `encode` makes of the items, unless that is sure to be too much."""
        texts = self._check_size(inputs)
        size, most = sum(map(len, texts)), self.limits.max_request_tokens

        def checked() -> T:
            if size > most * _SURE_CHARACTERS and is_cut_into_more(model.tokenizer, texts, most):
                raise too_many_tokens(f"more than {most} tokens", most)
            try:
                return encode()
            except TooManyTokensError as error:
                raise RequestError(
                    413,
                    "Too many tokens",
                    f"{error.what}: {error.where}",
                    field="inputs",
                    remedy=error.remedy,
                ) from error

        with span("encode"):
            return await self._run(size > _QUICK_CHARACTERS, checked)

    async def _encode_texts(
        self, model: ServedModel, choice: FeatureChoice, inputs: Inputs, overflow: OverflowOrError
    ) -> EncodedTexts:
        of_ids = any(isinstance(each, list) for each in inputs.items)
        encode_any = encode_ids if of_ids else encode_texts
        encode = partial(encode_any, model.extractor(choice), inputs.items, overflow)
        encoded = await self._encode(model, inputs, encode)
        self._check_rows(encoded.rows.rows, encoded.too_long, inputs, model, overflow)
        if encoded.is_cut:
            self.metrics.count_truncated(model.name, int(encoded.too_long.sum()))
        return encoded

    async def cut(
        self, model: ServedModel, inputs: Inputs, add_special_tokens: bool
    ) -> list[Encoding]:
        """The tokens of each text, which its client pays for."""
        encode = partial(
            model.tokenizer.encode_batch, inputs.items, add_special_tokens=add_special_tokens
        )
        found = await self._encode(model, inputs, encode)
        num_tokens = sum(map(len, found))
        self._check_tokens(num_tokens)
        self._check_numbers(num_tokens, _NUMBERS_OF_A_TOKEN)
        self.pay(num_tokens)
        return found

    async def decode(
        self, model: ServedModel, inputs: Inputs, skip_special_tokens: bool
    ) -> list[str]:
        """The texts of lists of tokens' ids, which their client pays for."""
        self._check_size(inputs)
        num_tokens = sum(map(len, inputs.items))
        self._check_tokens(num_tokens)
        self.pay(num_tokens)
        decode = partial(
            model.tokenizer.decode_batch, inputs.items, skip_special_tokens=skip_special_tokens
        )
        return await self._run(num_tokens > _QUICK_TOKENS, decode)

    async def run_apart(self, function: Callable[[], T]) -> T:
        """Calls a function that takes long by itself, off the event loop, one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._apart, function)

    @property
    def answer_is_long(self) -> bool:
        """Whether so much was found for the request that to write it takes long."""
        request = current_request.get()
        return request is not None and request.num_numbers > _QUICK_NUMBERS

    def pay(self, num_tokens: int) -> None:
        """Notes tokens that a request has read; raises `RateLimitError` where its key has none."""
        request = current_request.get()
        if request is not None:
            request.num_tokens += num_tokens
            if request.payer is not None:
                request.payer.pay(num_tokens)

    async def _compute(self, model: ServedModel, work: Work) -> list[FloatArray]:
        self.pay(work.num_tokens)
        with computing(work.batches):
            future = model.batcher.submit(work, self.limits.deadline_seconds)
            return await asyncio.wrap_future(future)

    async def _run(self, is_long: bool, function: Callable[[], T]) -> T:
        """Calls a function, off the event loop if that would keep others waiting."""
        if not is_long:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _check_size(self, inputs: Inputs) -> list[str]:
        """The texts of the items.

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
        check_texts(texts, self.limits)
        return texts

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
            found, most = int(rows.num_tokens[number]), self.limits.max_request_tokens
            # Words of raw text are not read further than a request may have tokens.
            count = f"{found}" if found <= most else f"over {most}"
            raise RequestError(
                422,
                TOO_LONG,
                f"{count} tokens are more than {model.name} reads at once",
                field=inputs.name_of(number),
                remedy=inputs.if_too_long,
            )
        self._check_tokens(len(rows.input_ids))

    def _check_tokens(self, num_tokens: int) -> None:
        most = self.limits.max_request_tokens
        if num_tokens > most:
            raise too_many_tokens(f"{num_tokens} tokens", most)

    def _check_numbers(self, num_units: int, size: int) -> None:
        if request := current_request.get():
            request.num_numbers += num_units * size
        if num_units * size > self.limits.max_answer_numbers:
            raise RequestError(
                413,
                "Too long an answer",
                f"{num_units} times {size} numbers,"
                f" and what a request asks for has {self.limits.max_answer_numbers} at most",
                field="inputs",
                remedy="divide them among several requests; of features, ask for texts, not tokens",
            )


def check_pairs(inputs: Inputs, task: Classification, name: str) -> None:
    """Raises `RequestError` for a pair where the model reads single texts, and the reverse.

    A model that `transformers` fine-tuned does not say it, and reads both.
    """
    wants_pairs = task.reads_pairs
    if wants_pairs is None:
        return
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
