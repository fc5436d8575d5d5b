"""What an engine refuses, and what it says when it is busy."""

import asyncio
import threading
import time

import pytest

from bert_core.tasks.classification import Classification, Text
from serving.batching import DeadlineError, OverloadedError
from serving.engine import Engine
from serving.inputs import Inputs
from serving.limits import Limits
from serving.models import ModelLoader, close_models, load_models


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
    inputs = Inputs.of([Text(each, None, None) for each in texts])
    return engine.ask(model, task, inputs, overflow)


def test_too_many_items_are_refused(strict_server):
    status, problem = strict_server.ask("/v1/classify", {"inputs": ["a"] * 4})
    assert status == 413 and problem["title"] == "Too many items"


def test_too_many_tokens_are_refused(strict_server):
    status, problem = strict_server.ask("/v1/classify", {"inputs": ["a " * 30] * 3})
    assert status == 413 and problem["title"] == "Too many tokens"


def test_too_long_an_answer_is_refused(small_models, start_server):
    models = load_models({"encoder": small_models["encoder"]})
    server = start_server(Engine(models, Limits(max_answer_numbers=1000)), small_models)
    body = {"inputs": "a " * 40, "unit": "token"}
    status, problem = server.ask("/v1/features", body)
    assert status == 413 and problem["title"] == "Too long an answer"
    assert server.ask("/v1/features", body | {"unit": "text"})[0] == 200
    close_models(list(models.values()))


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
