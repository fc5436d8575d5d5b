"""The engine: items of one request -> rows -> micro-batches -> answers.

`bert_core` encodes and decodes, as offline; a `Batcher` computes in between.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tokenizers import Encoding

from bert_core.features.extractor import EncodedTexts, Extractor, FeatureChoice
from bert_core.interface import OverflowOrError
from bert_core.tasks.answers import Codec
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.task import FloatArray, Task
from serving.batching import Work
from serving.limits import Limits
from serving.models import ModelLoader, ServedModel
from serving.request_context import current_request
from serving.rollout.aliases import Role, Slot
from serving.rollout.traffic import Agreement, Shadows, SlotState, Traffic, Variant
from serving.telemetry.drift import Drift
from serving.telemetry.metrics import Metrics
from serving.telemetry.tracing import computing, span
from serving.text_features import (
    TextFeatures,
    decode_features,
    decode_states,
    encode_ids,
)
from serving.validation import (
    Inputs,
    check_numbers,
    check_rows,
    check_size,
    check_tokens,
    encode_within,
)

T = TypeVar("T")
KindOfTask = TypeVar("KindOfTask", bound=Task)

_QUICK_CHARACTERS = 8192
"""Up to so many, texts are encoded on the event loop: a thread costs more than it saves."""
_QUICK_TOKENS = 2048
_QUICK_NUMBERS = 65536
"""What a model answers is read, and written, off the event loop where it has more numbers."""

_NUMBERS_OF_A_TOKEN = 5
"""What a token's id, text and place take to write."""


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
        self.slots: dict[Slot, SlotState] = {}
        self.drift = Drift(self.metrics.registry)
        for model in models.values():
            self.drift.add(model)
        self._watch_batchers()
        self._shadows = Shadows(self.metrics)
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

    def set_variant(self, name: str, role: Role, variant: Variant | None) -> ServedModel | None:
        """As `Traffic.set_variant`."""
        if variant is not None:
            self.drift.add(variant.model)
        before = self.traffic.set_variant(name, role, variant)
        self._watch_batchers()
        return before

    def retire(self, model: ServedModel, seconds: float) -> bool:
        """As `Traffic.retire`."""
        have_ended = self.traffic.retire(model, seconds)
        self.drift.remove(model)
        self.metrics.keep_versions(self.traffic.answering)
        return have_ended

    def agreement(self, shadow: ServedModel) -> Agreement:
        """As `Shadows.agreement`."""
        return self._shadows.agreement(shadow)

    def _watch_batchers(self) -> None:
        batchers = self.traffic.batchers.items()
        self.metrics.watch({"+".join(names): batcher for batcher, names in batchers})

    def check_room(self) -> None:
        """Raises `OverloadedError` where every encoder turns away whatever comes."""
        batchers = self.traffic.batchers
        if all(batcher.is_full for batcher in batchers):
            next(iter(batchers)).check_room()

    def check_health(self) -> None:
        """Raises `RuntimeError` where an encoder computes no more: its thread has ended, or hangs.

        It hangs where a micro-batch should have ended a whole deadline ago.
        """
        for batcher in self.traffic.batchers:
            if not batcher.is_alive:
                raise RuntimeError("an encoder's thread has ended")
            if batcher.watchdog.seconds > self.limits.deadline_seconds:
                raise RuntimeError("an encoder hangs")

    def close(self) -> None:
        """Ends the threads of the encoders, each with the micro-batch that it is at."""
        for batcher in self.traffic.batchers_in_use:
            batcher.close(finish=False)
        self._shadows.close()

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
        check_rows(rows, rows.truncated, inputs, model.name, overflow, self.limits)
        work = (work_of or model.work)(rows)
        check_numbers(len(rows.places), work.width, self.limits)
        (outputs,) = await self._compute(model, work)
        is_long = len(rows.input_ids) > _QUICK_TOKENS or outputs.size > _QUICK_NUMBERS
        with span("decode"):
            found = await self._run(is_long, partial(codec.decode, outputs, rows, inputs.items))
        self.metrics.count_truncated(model.name, rows.num_truncated)
        self.drift.note(model, rows, found if work_of is None else None)
        shadow = self.traffic.shadow_of(model) if work_of is None else None
        if shadow is not None:
            seconds = self.limits.deadline_seconds
            self._shadows.compare(shadow, codec, inputs.items, found, seconds)
        return [
            Prediction(prediction, num_tokens, truncated)
            for prediction, num_tokens, truncated in zip(
                found, rows.num_tokens.tolist(), rows.truncated.tolist(), strict=True
            )
        ]

    async def features(
        self, model: ServedModel, choice: FeatureChoice, inputs: Inputs, overflow: OverflowOrError
    ) -> list[TextFeatures]:
        """The features of each text."""
        encoded = await self._encode_texts(model, choice, inputs, overflow)
        extractor, rows = model.extractor(choice), encoded.rows
        check_numbers(rows.num_units, extractor.feature_size, self.limits)
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
        check_numbers(len(rows.units), model.config.hidden_size, self.limits)
        (states,) = await self._compute(model, model.feature_work(rows.rows, choice))
        self.drift.note(model, rows.rows, None)
        with span("decode"):
            return decode_states(encoded, states)

    async def _encode(self, model: ServedModel, inputs: Inputs, encode: Callable[[], T]) -> T:
        """Returns `encode()`; raises `RequestError` first for items that are certainly too many."""
        texts = check_size(inputs, self.limits)
        checked = partial(encode_within, self.limits, model.tokenizer, texts, encode)
        with span("encode"):
            return await self._run(sum(map(len, texts)) > _QUICK_CHARACTERS, checked)

    async def _encode_texts(
        self, model: ServedModel, choice: FeatureChoice, inputs: Inputs, overflow: OverflowOrError
    ) -> EncodedTexts:
        of_ids = any(isinstance(item, list) for item in inputs.items)
        encode_any = encode_ids if of_ids else Extractor.encode
        encode = partial(encode_any, model.extractor(choice), inputs.items, overflow)
        encoded = await self._encode(model, inputs, encode)
        check_rows(encoded.rows.rows, encoded.too_long, inputs, model.name, overflow, self.limits)
        if encoded.is_cut:
            self.metrics.count_truncated(model.name, int(encoded.too_long.sum()))
        return encoded

    async def tokenize(
        self, model: ServedModel, inputs: Inputs, add_special_tokens: bool
    ) -> list[Encoding]:
        """Tokenizes each text; the request's key pays for the tokens."""
        encode = partial(
            model.tokenizer.encode_batch, inputs.items, add_special_tokens=add_special_tokens
        )
        found = await self._encode(model, inputs, encode)
        num_tokens = sum(map(len, found))
        check_tokens(num_tokens, self.limits)
        check_numbers(num_tokens, _NUMBERS_OF_A_TOKEN, self.limits)
        self.pay(num_tokens)
        return found

    async def decode(
        self, model: ServedModel, inputs: Inputs, skip_special_tokens: bool
    ) -> list[str]:
        """Decodes lists of token ids to texts; the request's key pays for the tokens."""
        check_size(inputs, self.limits)
        num_tokens = sum(map(len, inputs.items))
        check_tokens(num_tokens, self.limits)
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
            if request.key is not None:
                request.key.pay(num_tokens)

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
