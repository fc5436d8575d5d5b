"""The engine: items of one request -> rows -> micro-batches -> answers.

`bert_core` encodes and decodes, as offline; a `Batcher` computes in between. Shapes: N texts,
U units (a text, its words or its tokens), F feature size, P places, H hidden size.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Encoding

from bert_core.features.extractor import EncodedTexts, Extractor, FeatureChoice, UnitFeatures
from bert_core.features.units import UnitRows, default_pooling, words_of
from bert_core.interface import OverflowOrError
from bert_core.special_tokens import SpecialTokenIds, special_token_ids
from bert_core.tasks.answers import Codec
from bert_core.tasks.encoded_rows import EncodedRows, whole_rows
from bert_core.tasks.task import FloatArray
from bert_core.text.rng import IntArray
from serving.batching import DeadlineError, OverloadedError, Work
from serving.limits import Limits
from serving.models import ModelLoader, ServedModel
from serving.request_context import computing, current_request, span
from serving.rollout.aliases import Role, Slot, SlotState
from serving.rollout.traffic import Agreement, Shadows, Traffic, Variant
from serving.telemetry.drift import Drift
from serving.telemetry.metrics import Metrics
from serving.validation import (
    Inputs,
    check_numbers,
    check_rows,
    check_size,
    check_tokens,
    encode_within,
)

T = TypeVar("T")

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


@dataclass(frozen=True)
class TextFeatures:
    """The features of the units of one text, float32 [U, F].

    `units` are its words or tokens with the characters they stand at; None of a whole text.
    """

    vectors: FloatArray
    units: list[tuple[str, int, int]] | None
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
        self._explanations = ThreadPoolExecutor(1, thread_name_prefix="explanations")
        self._tokens_to_explain = 0

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
            self.drift.add(variant.model, is_active=False)
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
        *,
        of_its_task: bool = True,
    ) -> list[Prediction]:
        """A prediction for each item, by the head of the model's task unless `work_of` is another.

        Drift counts those `of_its_task` alone: others need not be like what it was trained on.
        With the overflow `error` the codec cuts, and what was cut is refused. Raises
        `RequestError`, `OverloadedError` or `DeadlineError`.
        """
        rows = await self._encode(
            model, inputs, partial(codec.encode, inputs.items, model.tokenizer)
        )
        check_rows(rows, rows.truncated, inputs, model.name, overflow, self.limits)
        work = (work_of or model.work)(rows)
        check_numbers(rows.num_answers(per_row=work.per_row), work.width, inputs.field, self.limits)
        (outputs,) = await self._compute(model, work)
        is_long = len(rows.input_ids) > _QUICK_TOKENS or outputs.size > _QUICK_NUMBERS
        with span("decode"):
            found = await self._run(is_long, partial(codec.decode, outputs, rows, inputs.items))
        self.metrics.count_truncated(model.name, rows.num_truncated)
        if work.targets is None:  # else a text has a row for each of its tokens
            is_own = of_its_task and work_of is None
            self.drift.note(model, rows, found if is_own else None)
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
        check_numbers(rows.num_units, extractor.feature_size, inputs.field, self.limits)
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
        check_numbers(len(rows.units), model.config.hidden_size, inputs.field, self.limits)
        (states,) = await self._compute(model, model.feature_work(rows.rows, choice))
        self.drift.note(model, rows.rows, None)
        with span("decode"):
            return decode_states(encoded, states)

    async def word_weights(
        self, model: ServedModel, choice: FeatureChoice, inputs: Inputs, overflow: OverflowOrError
    ) -> list[TextFeatures]:
        """The weight of each word of the vocabulary for each text, [1, V]; a text is one row."""
        assert choice.unit == "text" and overflow != "window"
        encoded = await self._encode_texts(model, choice, inputs, overflow)
        rows = encoded.rows.rows
        check_numbers(len(rows.lengths), model.config.vocab_size, inputs.field, self.limits)
        (weights,) = await self._compute(model, model.word_weight_work(rows))
        self.drift.note(model, rows, None)
        return _by_text(encoded, weights, np.ones_like(rows.lengths), None)

    async def _encode(self, model: ServedModel, inputs: Inputs, encode: Callable[[], T]) -> T:
        """Returns `encode()`; raises `RequestError` first for items that are certainly too many."""
        texts = check_size(model.tokenizer, inputs, self.limits)
        checked = partial(encode_within, self.limits, model.tokenizer, texts, inputs.field, encode)
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
        check_tokens(num_tokens, inputs.field, self.limits)
        check_numbers(num_tokens, _NUMBERS_OF_A_TOKEN, inputs.field, self.limits)
        self.pay(num_tokens)
        return found

    async def decode(
        self, model: ServedModel, inputs: Inputs, skip_special_tokens: bool
    ) -> list[str]:
        """Decodes lists of token ids to texts; the request's key pays for the tokens."""
        check_size(model.tokenizer, inputs, self.limits)
        num_tokens = sum(map(len, inputs.items))
        check_tokens(num_tokens, inputs.field, self.limits)
        self.pay(num_tokens)
        decode = partial(
            model.tokenizer.decode_batch, inputs.items, skip_special_tokens=skip_special_tokens
        )
        return await self._run(num_tokens > _QUICK_TOKENS, decode)

    async def run_apart(self, function: Callable[[], T]) -> T:
        """Calls a function that takes long by itself, off the event loop, one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._apart, function)

    async def explain(self, function: Callable[[], T], num_tokens: int) -> T:
        """Calls a function that explains so many tokens, off the event loop, one at a time.

        As for a batcher: raises `OverloadedError` where more would wait than may, and
        `DeadlineError` where the request waited for too long. Its key pays for the tokens.
        """
        self.pay(num_tokens)
        waiting = self._tokens_to_explain
        if waiting and waiting + num_tokens > self.limits.max_waiting_tokens:
            raise OverloadedError(self.limits.deadline_seconds / 2)
        deadline = time.monotonic() + self.limits.deadline_seconds

        def explained() -> T:
            if time.monotonic() > deadline:
                raise DeadlineError("the request timed out in the queue")
            return function()

        self._tokens_to_explain += num_tokens
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._explanations, explained)
        finally:
            self._tokens_to_explain -= num_tokens

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


def encode_ids(
    extractor: Extractor, lists: Sequence[Sequence[int]], overflow: OverflowOrError
) -> EncodedTexts:
    """A row for each list of a text's tokens, as they are: no special tokens are added.

    A cut leaves `[CLS]` at the beginning and `[SEP]` at the end where they are. The unit is a text.
    """
    special = special_token_ids(extractor.tokenizer)
    longest = extractor.max_length
    num_tokens = np.fromiter(map(len, lists), np.int64, len(lists))
    is_cut = overflow in ("left", "right")
    if is_cut:
        lists = [_cut(ids, longest, overflow, special) for ids in lists]
    kept = np.fromiter(map(len, lists), np.int64, len(lists))
    input_ids = np.fromiter(chain.from_iterable(lists), np.int64, int(kept.sum()))
    pooling = extractor.choice.pooling or default_pooling("text")
    places, counts = whole_rows(kept, "cls" if pooling == "cls" else "mean")
    rows = EncodedRows(
        input_ids=input_ids,
        lengths=kept,
        first_lengths=kept,
        places=places,
        place_counts=counts,
        labels=np.empty(0, dtype=np.int64),
        labels_per_item=np.zeros_like(kept),
        rows_per_item=np.ones_like(kept),
        example=np.arange(len(kept)),
        num_tokens=num_tokens,
        truncated=kept < num_tokens,
        notes={},
    )
    units = np.repeat(np.arange(len(kept)), counts)
    of_units = UnitRows(rows, units, np.ones_like(kept), pooling)
    return EncodedTexts([], None, of_units, num_tokens, num_tokens > longest, is_cut)


def _cut(
    ids: Sequence[int], longest: int, side: OverflowOrError, special: SpecialTokenIds
) -> Sequence[int]:
    if len(ids) <= longest:
        return ids
    first = ids[: ids[0] == special.cls]
    last = ids[len(ids) - (ids[-1] == special.sep) :]
    inner = ids[len(first) : len(ids) - len(last)]
    room = longest - len(first) - len(last)
    return [*first, *(inner[-room:] if side == "left" else inner[:room]), *last]


def decode_features(
    extractor: Extractor, encoded: EncodedTexts, states: Sequence[FloatArray]
) -> list[TextFeatures]:
    """The features of each text, of the states [P, H] of each layer that is read."""
    choice, rows = extractor.choice, encoded.rows
    weights = None if choice.layer_weights is None else torch.tensor(choice.layer_weights)
    features = UnitFeatures(rows, extractor.feature_size, torch.device("cpu"))
    combined = choice.strategy.combine([torch.from_numpy(layer) for layer in states], weights)
    features.add(np.arange(len(rows.units)), combined)
    vectors = features.pooled(normalize=choice.normalize)
    return _by_text(encoded, vectors, rows.unit_counts, _units(extractor, encoded))


def decode_states(encoded: EncodedTexts, states: FloatArray) -> list[TextFeatures]:
    """The states [P, H] of the tokens of each text, special ones too, that is one row each."""
    return _by_text(encoded, states, encoded.rows.rows.place_counts, None)


def _by_text(
    encoded: EncodedTexts,
    vectors: FloatArray,
    counts: IntArray,
    units: list[tuple[str, int, int]] | None,
) -> list[TextFeatures]:
    ends = np.cumsum(counts)
    columns = ends - counts, ends, encoded.num_tokens, encoded.too_long
    return [
        TextFeatures(
            vectors[begin:end],
            None if units is None else units[begin:end],
            num_tokens,
            encoded.is_cut and too_long,
        )
        for begin, end, num_tokens, too_long in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def _units(extractor: Extractor, encoded: EncodedTexts) -> list[tuple[str, int, int]] | None:
    tokens, texts = encoded.tokens, encoded.texts
    if extractor.choice.unit == "text":
        return None
    assert tokens is not None
    if extractor.choice.unit == "word":
        words, spans = words_of(tokens, texts)
        return [(word, a, b) for word, (a, b) in zip(words, spans.tolist(), strict=True)]
    assert tokens.offsets is not None
    of_token = np.repeat(np.arange(len(texts)), tokens.lengths).tolist()
    return [
        (texts[text][a:b], a, b)
        for text, (a, b) in zip(of_token, tokens.offsets.tolist(), strict=True)
    ]
