"""Requests through the engine: limits, encoding, answers."""

import asyncio
import threading
import time

import numpy as np
import pytest
from pydantic import ValidationError
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.model_folder import load_model_folder
from bert_core.special_tokens import ROBERTA_TOKENS, SPECIAL_TOKENS
from bert_core.tasks.classification import Classification, Text
from bert_core.tokenizer import wordpiece_tokenizer
from serving.batching import DeadlineError, OverloadedError
from serving.engine import Engine, decode_features
from serving.errors import RequestError
from serving.limits import Limits
from serving.models import ModelLoader, close_models, load_models
from serving.validation import (
    Inputs,
    check_texts,
    encode_within,
    has_more_tokens,
    is_cut_into_more,
    num_bytes,
)


@pytest.fixture
def engine_of(small_models):
    """Makes an engine of the sentiment model within limits."""
    made = []

    def make(**limits):
        all_limits = Limits(**limits)
        models = load_models(
            {"sentiment": small_models["sentiment"]},
            ModelLoader(
                max_tokens=all_limits.max_batch_tokens,
                max_waiting_tokens=all_limits.max_waiting_tokens,
            ),
        )
        made.extend(models.values())
        return Engine(models, all_limits)

    yield make
    close_models(made)


def ask(engine, texts, overflow="error"):
    model, task = engine.traffic.find(None, Classification)
    inputs = Inputs.of([Text(text, None, None) for text in texts])
    return engine.ask(model, task, inputs, overflow)


def test_too_many_items_or_tokens_are_refused(strict_server):
    for inputs, title in ((["a"] * 4, "Too many items"), (["a " * 30] * 3, "Too many tokens")):
        status, problem = strict_server.ask("/v1/classify", {"inputs": inputs})
        assert status == 413 and problem["title"] == title


def test_too_long_an_answer_is_refused(small_models, start_server):
    folders = {"encoder": small_models["encoder"]}
    server = start_server(folders, Limits(max_answer_numbers=1000))
    body = {"inputs": "a " * 40, "unit": "token"}
    status, problem = server.ask("/v1/features", body)
    assert status == 413 and problem["title"] == "Too long an answer"
    assert server.ask("/v1/features", body | {"unit": "text"})[0] == 200


def busy(engine):
    """Keeps the encoder's thread from its work until the event is set."""
    (model,) = engine.models.values()
    free, begun = threading.Event(), threading.Event()

    def wait(_):
        begun.set()
        free.wait(30)

    model.batcher.watch = wait
    return free, begun


async def after_the_first(engine, texts):
    """Asks while the encoder's thread is held up by an earlier request."""
    free, begun = busy(engine)
    await ask(engine, ["a cat"])
    while not begun.is_set():
        await asyncio.sleep(0.01)
    waiting = [asyncio.create_task(ask(engine, some)) for some in texts]
    await asyncio.sleep(0.2)
    free.set()
    return await asyncio.gather(*waiting, return_exceptions=True)


def test_what_is_too_much_is_turned_away_at_once(engine_of):
    engine = engine_of(max_waiting_tokens=50)
    begin = time.monotonic()
    found = asyncio.run(after_the_first(engine, [["a cat sat"] * 9, ["a dogs"] * 9]))
    assert len(found[0]) == 9
    assert isinstance(found[1], OverloadedError) and found[1].retry_after > 0
    assert time.monotonic() - begin < 10


def test_what_waits_too_long_is_told(engine_of):
    engine = engine_of(deadline_seconds=0.1)
    (found,) = asyncio.run(after_the_first(engine, [["a cat sat"]]))
    assert isinstance(found, DeadlineError)


def test_long_texts_do_not_hold_up_the_event_loop(engine_of):
    engine = engine_of()
    threads = []
    model, task = engine.traffic.find(None, Classification)

    class Codec:
        def encode(self, examples, tokenizer):
            threads.append(threading.current_thread().name)
            return task.encode(examples, tokenizer)

        def decode(self, outputs, rows, examples):
            return task.decode(outputs, rows, examples)

    for text in ("a cat", "a cat " * 5000):
        inputs = Inputs.of([Text(text, None, None)])
        asyncio.run(engine.ask(model, Codec(), inputs, "right"))
    assert threads[0] == "MainThread" and threads[1].startswith("long-texts")


def until_unhealthy(engine):
    """What is wrong, as soon as something is."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            engine.check_health()
        except RuntimeError as error:
            return str(error)
        time.sleep(0.01)
    return None


def test_an_encoder_that_hangs_is_noticed(engine_of):
    engine = engine_of(deadline_seconds=0.2)
    for _ in range(3):  # the first takes long
        asyncio.run(ask(engine, ["a cat"]))
    opened = threading.Event()
    embeddings = engine.models["sentiment"].batcher.encoder.embeddings
    hook = embeddings.register_forward_pre_hook(lambda *_: not opened.wait(60) or None)
    asked = threading.Thread(target=lambda: asyncio.run(ask(engine, ["a cat"])))
    asked.start()
    engine.check_health()  # not yet
    assert until_unhealthy(engine) == "an encoder hangs"
    opened.set()
    asked.join()
    hook.remove()
    engine.check_health()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_encoder_without_its_thread_is_noticed(engine_of):
    engine = engine_of()
    batcher = engine.models["sentiment"].batcher

    def end(_):
        raise SystemExit

    batcher.watch = end
    asyncio.run(ask(engine, ["a cat"]))
    assert until_unhealthy(engine) == "an encoder's thread has ended"


@pytest.mark.parametrize(
    "text",
    ["the cat", "a,b.(c)", "東京 is", "don't stop", "naïve 👩‍🚀🎉", "x\u0301y", "[MASK]!",
     "[MASK] " * 9, "[mask][[CLS]", "\u200b " * 9, "\u0301 \u0301",
     "a\x1cb\x0bc\x85d", "\u4dc0\u4dc1\u4dc2"],
)  # fmt: skip
def test_a_text_has_at_least_the_tokens_that_are_seen(small_models, text):
    _, _, tokenizer = load_model_folder(small_models["encoder"])
    seen = sum(has_more_tokens(tokenizer, [text], most) for most in range(50))
    assert seen <= len(tokenizer.encode(text, add_special_tokens=False))
    assert has_more_tokens(tokenizer, ["a b", "c"], 2)
    assert not has_more_tokens(tokenizer, ["a b", "c"], 3)


def test_no_character_is_taken_for_more_tokens_than_it_has():
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, "a", "aa"])}
    characters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    for lowercase in (True, False):
        tokenizer = wordpiece_tokenizer(vocabulary, lowercase=lowercase)
        # Alone a character may be dropped; within a word it may be dropped, or not part it.
        for texts, fewest in ((characters, 0), ([f"a{each}a" for each in characters], 1)):
            encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            some = [text for text, e in zip(texts, encodings, strict=True) if len(e) == fewest]
            assert len(some) > 1000 and not has_more_tokens(tokenizer, some, fewest * len(some))


@pytest.mark.parametrize(
    ("token", "normalized", "text"),
    [("<x>", False, "<x>" * 9), ("<x>", True, "<X>" * 9), ("a-b", False, "xa-b " * 9)],
)
def test_added_tokens_are_one_each(small_models, token, normalized, text):
    _, _, tokenizer = load_model_folder(small_models["encoder"])
    assert has_more_tokens(tokenizer, [text], 18)
    tokenizer.add_tokens([AddedToken(token, normalized=normalized)])
    num_tokens = len(tokenizer.encode(text, add_special_tokens=False))
    assert num_tokens <= 18 and not has_more_tokens(tokenizer, [text], num_tokens)


@pytest.mark.parametrize(
    "text", ["the cat sat " * 20_000, "a" * 99 + " ", "y" * 100_000 + " cat", ""]
)
def test_tokens_are_counted_as_far_as_need_be(small_models, text):
    _, _, tokenizer = load_model_folder(small_models["encoder"])
    texts = [text, "the cat"]
    num_tokens = sum(len(tokenizer.encode(each, add_special_tokens=False)) for each in texts)
    assert not is_cut_into_more(tokenizer, texts, num_tokens)
    if num_tokens > 50_000:
        assert is_cut_into_more(tokenizer, texts, num_tokens - 1)
    assert is_cut_into_more(tokenizer, texts * 2, max(num_tokens, 400)) == (num_tokens > 400)


def test_texts_that_are_sure_to_be_too_long_are_refused(small_models):
    _, _, tokenizer = load_model_folder(small_models["encoder"])
    limits = Limits(max_request_tokens=10, max_body_bytes=1000)
    assert num_bytes(["a", "é", "中", "🎉"]) == 1 + 2 + 3 + 4
    check_texts(tokenizer, ["a" * 500], "inputs", limits)
    for text, title in (("a" * 501, "Too long texts"), ("a " * 11, "Too many tokens")):
        with pytest.raises(RequestError) as told:
            check_texts(tokenizer, [text], "inputs", limits)
        assert told.value.problem.status == 413 and told.value.problem.title == title


class CountedTokenizer:
    """A tokenizer of long pieces, and the characters that it was given."""

    def __init__(self, kind):
        pieces = [*ROBERTA_TOKENS.all, *map(chr, range(0x4E00, 0x4E03)), "\u2581", "-" * 8]
        pieces += ["-", "-" * 2, "-" * 4, "\u4e00\u4e01\u4e02"]
        if kind == "unigram":
            model = models.Unigram([(piece, -1.0) for piece in pieces], unk_id=1)
            self._tokenizer = Tokenizer(model)
            self._tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        else:
            text = "-" * 64 + " " + "\u4e00\u4e01\u4e02" * 4
            self._tokenizer = Tokenizer(models.BPE())
            self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            alphabet = pre_tokenizers.ByteLevel.alphabet()
            trainer = trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False)
            self._tokenizer.train_from_iterator([text] * 9, trainer)
        self.given = 0

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def encode_batch_fast(self, texts, **options):
        self.given += sum(map(len, texts))
        return self._tokenizer.encode_batch_fast(texts, **options)


@pytest.mark.parametrize("kind", ["bytes", "unigram"])
@pytest.mark.parametrize("unit", ["\u4e00\u4e01\u4e02", "-" * 8])
def test_texts_with_few_tokens_of_many_characters_are_read(kind, unit):
    tokenizer, limits = CountedTokenizer(kind), Limits()
    text = unit * (36_000 // len(unit))
    num_tokens = len(tokenizer.encode(text, add_special_tokens=False))
    assert num_tokens < limits.max_request_tokens < len(text)
    check_texts(tokenizer, [text], "inputs", limits)
    assert encode_within(limits, tokenizer, [text], "inputs", lambda: "read") == "read"
    few = Limits(max_request_tokens=num_tokens // 2 - 101)
    with pytest.raises(RequestError) as told:
        encode_within(few, tokenizer, [text], "inputs", lambda: "read")
    assert told.value.problem.title == "Too many tokens"


@pytest.mark.parametrize("kind", ["bytes", "unigram"])
def test_of_a_hostile_text_no_more_is_cut_than_has_the_tokens_of_a_request(kind):
    tokenizer, limits = CountedTokenizer(kind), Limits()
    with pytest.raises(RequestError) as told:
        check_texts(tokenizer, ["-" * 10_000_000], "inputs", limits)
    assert told.value.problem.title == "Too long texts" and not tokenizer.given
    hostile = "- \u4e00 " * 100_000
    check_texts(tokenizer, [hostile], "inputs", limits)
    with pytest.raises(RequestError) as told:
        encode_within(limits, tokenizer, [hostile], "inputs", lambda: "read")
    assert told.value.problem.title == "Too many tokens"
    assert 0 < tokenizer.given <= 4 * limits.max_request_tokens


def test_limits_are_described_and_positive():
    for name, field in Limits.model_fields.items():
        assert field.description and getattr(Limits(), name) > 0
        with pytest.raises(ValidationError):
            Limits(**{name: 0})


@pytest.fixture
def extractor(small_models):
    choice = FeatureChoice(unit="word", pooling="mean", max_length=8)
    return load_extractor(small_models["encoder"], choice)


def features(extractor, texts, overflow):
    encoded = extractor.encode(texts, overflow)
    states = np.arange(len(encoded.rows.units) * 32, dtype=np.float32).reshape(-1, 32)
    return encoded, decode_features(extractor, encoded, [states])


@pytest.mark.parametrize("overflow", ["left", "right", "window", "error"])
def test_words_that_are_left_have_vectors(extractor, overflow):
    texts = ["the cat sat on a mat dogs run", "a cat"]
    encoded, found = features(extractor, texts, overflow)
    assert encoded.too_long.tolist() == [True, False]
    is_cut = overflow in ("left", "right")
    assert [each.truncated for each in found] == [is_cut, False]
    for text, each in zip(texts, found, strict=True):
        assert len(each.units) == len(each.vectors)
        assert all(word == text[a:b] for word, a, b in each.units)
    words = [[word for word, *_ in each.units] for each in found]
    assert words[1] == ["a", "cat"]
    if is_cut:
        whole = texts[0].split()
        assert words[0] and len(words[0]) < len(whole)
        kept = whole[: len(words[0])] if overflow == "right" else whole[-len(words[0]) :]
        # The word at the edge may have lost some of its letters' tokens.
        assert words[0][1:-1] == kept[1:-1]
    else:
        assert words[0] == texts[0].split()
    assert found[1].num_tokens == int(encoded.num_tokens[1])
