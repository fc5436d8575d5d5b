import queue
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from small_tasks import WRITERS, write_data, write_encoder

from bert_core.model_folder import load_model_folder
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.classification import Text
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.task import add_task_head, head_answers, hidden_states
from serving.batching import Batcher, DeadlineError, OverloadedError, Watchdog, Work

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def opened(encoder_folder):
    """A model and its tokenizer."""
    _, model, tokenizer = load_model_folder(encoder_folder)
    return model.eval(), tokenizer


@pytest.fixture
def batcher_of():
    """Makes a batcher, closed in the end."""
    made = []

    def make(encoder, **settings):
        made.append(Batcher(encoder, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Gate:
    """Holds the thread that computes after each micro-batch until it is opened."""

    def __init__(self):
        self.opened = threading.Event()
        self.reached = threading.Event()
        self.batches = []

    def __call__(self, batch):
        self.batches.append(batch)
        self.reached.set()
        assert self.opened.wait(30)


@pytest.fixture
def held(opened, batcher_of):
    """Makes a batcher that is held after its first micro-batch, of 5 tokens; and its gate."""
    model, tokenizer = opened

    def make(**settings):
        gate = Gate()
        batcher = batcher_of(model.encoder, watch=gate, **settings)
        batcher.submit(Work(texts(tokenizer, 3), (1,)))
        assert gate.reached.wait(30)
        return batcher, gate

    return make


def work_of(task, model, examples, tokenizer):
    head = partial(head_answers, model)
    rows = task.encode(examples, tokenizer)
    last = (model.config.num_hidden_layers,)
    return Work(rows, last, head, task.head.num_outputs)


@pytest.mark.parametrize("name", list(WRITERS))
@pytest.mark.parametrize("max_tokens", [1, 60, 4096])
def test_answers_in_any_company_are_those_of_the_offline_predictor(
    name, max_tokens, opened, batcher_of, tmp_path
):
    model, tokenizer = opened
    examples = TASKS[name].examples(write_data(name, tmp_path / "data"), "train")
    task = TASKS[name].with_labels(examples)
    add_task_head(model, task)
    model.eval()
    batcher = batcher_of(model.encoder, max_tokens=max_tokens)
    works = [work_of(task, model, examples[i : i + 3], tokenizer) for i in range(0, 30, 3)]
    assert len(examples) == 30
    for work, future in [(each, batcher.submit(each)) for each in works]:
        (found,) = future.result(30)
        alone, _ = compute_all_outputs(task, model, work.rows, device=CPU)
        np.testing.assert_allclose(found, alone, atol=1e-5)


def test_requests_for_heads_and_for_layers_share_a_micro_batch(opened, held, tmp_path):
    model, tokenizer = opened
    examples = TASKS["sst2"].examples(write_data("sst2", tmp_path / "data"), "train")
    task = TASKS["sst2"].with_labels(examples)
    add_task_head(model, task)
    model.eval()
    batcher, gate = held(max_tokens=4096)
    first = work_of(task, model, examples[:2], tokenizer)
    alone, _ = compute_all_outputs(task, model, first.rows, device=CPU)
    states = Work(task.encode(examples[2:4], tokenizer), (1, 0))
    embeddings = Work(task.encode(examples[4:5], tokenizer), (0,))
    futures = [batcher.submit(each) for each in (states, first, embeddings)]
    gate.opened.set()
    top, bottom = futures[0].result(30)
    batcher.close()
    assert len(gate.batches) == 2 and gate.batches[1].num_requests == 3
    batch = states.rows.batch(np.arange(2), "packed")
    with torch.inference_mode():
        expected = hidden_states(model.encoder, batch, (1, 0))
    np.testing.assert_allclose(top, expected[0], atol=1e-5)
    np.testing.assert_allclose(bottom, expected[1], atol=1e-5)
    np.testing.assert_allclose(futures[1].result(30)[0], alone, atol=1e-5)
    assert futures[2].result(30)[0].shape == (1, model.config.hidden_size)


def texts(tokenizer, *num_words):
    """Rows of texts with so many words each, and two tokens more."""
    return TASKS["sst2"].encode([Text("cat " * word, None, None) for word in num_words], tokenizer)


def test_a_short_request_passes_a_long_one(opened, held):
    _, tokenizer = opened
    batcher, gate = held(max_tokens=64)
    order = []
    for name, words in (("long", [20] * 50), ("short", [3])):
        future = batcher.submit(Work(texts(tokenizer, *words), (1,)))
        future.add_done_callback(lambda _, name=name: order.append(name))
    gate.opened.set()
    future.result(30)
    batcher.close()
    assert order == ["short", "long"]
    assert max(batch.num_tokens for batch in gate.batches) <= 64
    assert sum(batch.num_tokens for batch in gate.batches) == 5 + 50 * 22 + 5


def test_who_gets_nothing_of_a_micro_batch_is_the_first_of_the_next(opened, held):
    _, tokenizer = opened
    batcher, gate = held(max_tokens=64)
    order = []
    # An item of 52 tokens is more than half a micro-batch, so it never fits beside the other's.
    for name, words in (("many", [20] * 20), ("long", [50])):
        future = batcher.submit(Work(texts(tokenizer, *words), (1,)))
        future.add_done_callback(lambda _, name=name: order.append(name))
    gate.opened.set()
    batcher.close()
    assert order == ["long", "many"]
    assert [batch.num_tokens for batch in gate.batches][1:3] == [44, 52]


def test_what_is_too_much_is_turned_away_and_leaves_room_for_small_ones(opened, held):
    _, tokenizer = opened
    for first, refused, taken in ((100, 3, []), (3, 100, [3])):
        batcher, gate = held(max_waiting_tokens=40)
        # However long, where none waits.
        waiting = [batcher.submit(Work(texts(tokenizer, first), (1,)))]
        assert batcher.waiting_tokens == first + 2
        with pytest.raises(OverloadedError) as raised:
            batcher.submit(Work(texts(tokenizer, refused), (1,)))
        assert raised.value.retry_after > 0
        waiting += [batcher.submit(Work(texts(tokenizer, words), (1,))) for words in taken]
        gate.opened.set()
        assert all(len(future.result(30)) == 1 for future in waiting)


def test_whoever_comes_to_a_full_server_is_turned_away_until_there_is_room(opened, held):
    _, tokenizer = opened
    batcher, gate = held(max_waiting_tokens=320, max_tokens=22)
    taken = [batcher.submit(Work(texts(tokenizer, *[20] * 7), (1,))) for _ in range(2)]  # 308
    batcher.check_room()
    with pytest.raises(OverloadedError):
        batcher.submit(Work(texts(tokenizer, 20), (1,)))
    assert batcher.is_full
    with pytest.raises(OverloadedError):
        batcher.check_room()
    with pytest.raises(OverloadedError):  # of two tokens there would be room
        batcher.submit(Work(texts(tokenizer, 0), (1,)))
    gate.opened.set()
    for each in taken:
        each.result(30)
    assert not batcher.is_full
    assert len(batcher.submit(Work(texts(tokenizer, 20), (1,))).result(30)) == 1


def test_each_thread_computes_a_micro_batch_of_its_own(opened, batcher_of):
    model, tokenizer = opened
    both = threading.Barrier(2)
    batcher = batcher_of(model.encoder, num_threads=2, watch=lambda _: both.wait(30))
    futures = []
    for words in (3, 4):  # the second when a thread has taken the first
        futures.append(batcher.submit(Work(texts(tokenizer, words), (1,))))
        while batcher.waiting_tokens:
            time.sleep(0.001)
    found = [future.result(30)[0] for future in futures]
    batcher.close()
    assert both.n_waiting == 0 and not both.broken  # neither waited for the other in vain
    for words, each in zip((3, 4), found, strict=True):
        batch = texts(tokenizer, words).batch(np.arange(1), "packed")
        with torch.inference_mode():
            (expected,) = hidden_states(model.encoder, batch, (1,))
        np.testing.assert_allclose(each, expected, atol=1e-5)


def test_threads_share_a_request_of_many_items(opened, batcher_of):
    model, tokenizer = opened
    batcher = batcher_of(model.encoder, num_threads=3, max_tokens=50)
    words = [number % 40 for number in range(200)]
    (found,) = batcher.submit(Work(texts(tokenizer, *words), (1,))).result(60)
    batch = texts(tokenizer, *words).batch(np.arange(200), "packed")
    with torch.inference_mode():
        (expected,) = hidden_states(model.encoder, batch, (1,))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_who_is_late_is_told_and_who_left_is_not_computed(opened, held):
    _, tokenizer = opened
    batcher, gate = held()
    late = batcher.submit(Work(texts(tokenizer, 3), (1,)), seconds=0)
    left = batcher.submit(Work(texts(tokenizer, 4), (1,)))
    stays = batcher.submit(Work(texts(tokenizer, 5), (1,)))
    assert left.cancel()
    gate.opened.set()
    assert len(stays.result(30)) == 1
    with pytest.raises(DeadlineError):
        late.result(30)
    batcher.close()
    assert [batch.num_tokens for batch in gate.batches] == [5, 7]


def test_an_error_is_told_to_whoever_caused_it_and_the_others_go_on(opened, held):
    _, tokenizer = opened

    def fail(states, place_counts):
        raise RuntimeError("no head")

    def answer_too_much(states, place_counts):
        return states[0].repeat(1, 2)

    batcher, gate = held()
    rows = texts(tokenizer, 3)
    futures = [
        batcher.submit(work)
        for work in (
            Work(rows, (1,)),
            Work(rows, (1,), fail, 2),
            Work(rows, (1,), answer_too_much, 2),
            Work(rows, (0, 1)),
        )
    ]
    gate.opened.set()
    with pytest.raises(RuntimeError, match="no head"):
        futures[1].result(30)
    with pytest.raises(ValueError, match="broadcast"):
        futures[2].result(30)
    np.testing.assert_allclose(futures[0].result(30)[0], futures[3].result(30)[1], atol=1e-5)


def test_who_watches_in_vain_disturbs_nobody(opened, batcher_of, caplog):
    model, tokenizer = opened

    def fail(batch):
        raise OSError("no room for figures")

    batcher = batcher_of(model.encoder, watch=fail)
    for _ in range(2):
        assert len(batcher.submit(Work(texts(tokenizer, 3), (1,))).result(30)) == 1
    batcher.close()
    assert "no room for figures" in caplog.text


def test_nothing_is_found_at_once(opened, batcher_of):
    model, tokenizer = opened
    rows = TASKS["conll2003"].encode([], tokenizer)
    (found,) = batcher_of(model.encoder).submit(Work(rows, (1,))).result(0)
    assert found.shape == (0, model.config.hidden_size)


def test_a_closed_batcher_takes_nothing(opened, batcher_of):
    model, tokenizer = opened
    batcher = batcher_of(model.encoder)
    future = batcher.submit(Work(texts(tokenizer, 3), (1,)))
    batcher.close()
    assert future.done()
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(Work(texts(tokenizer, 3), (1,)))


def test_one_output_at_each_place_may_be_all_that_is_wanted(opened, held):
    model, tokenizer = opened
    head = model.heads["masked_token"]

    def answer(states, place_counts):
        return head(states[0], model.encoder.word_embeddings)

    batcher, gate = held(max_tokens=24)
    rows = texts(tokenizer, 3, 9, 1, 12)
    targets = np.array([5, 6, 7, 8])
    size = model.config.vocab_size
    every = batcher.submit(Work(rows, (1,), answer, size))
    some = batcher.submit(Work(rows, (1,), answer, size, targets))
    gate.opened.set()
    (logits,), (chosen,) = every.result(30), some.result(30)
    wanted = torch.from_numpy(logits).log_softmax(1).numpy()[np.arange(4), targets]
    assert chosen.shape == (4, 1)
    np.testing.assert_allclose(chosen[:, 0], wanted, atol=1e-5)


def test_what_is_not_to_be_finished_is_cancelled(opened, held):
    _, tokenizer = opened
    batcher, gate = held(max_tokens=24)
    future = batcher.submit(Work(texts(tokenizer, 20, 20, 20), (1,)))
    closing = threading.Thread(target=batcher.close, kwargs={"finish": False})
    closing.start()
    while not future.cancelled():
        closing.join(0.01)
    gate.opened.set()
    closing.join(30)
    assert not batcher.is_alive and batcher.waiting_tokens == 0


def test_one_is_late_by_how_long_the_last_one_took():
    watchdog = Watchdog()
    with watchdog.at(1):  # the first may take as long as it likes
        time.sleep(0.05)
        assert watchdog.seconds == 0
    with watchdog.at(1):
        began = time.monotonic()
        assert watchdog.seconds == 0
        while not watchdog.seconds:
            assert time.monotonic() < began + 60
            time.sleep(0.01)
        assert time.monotonic() > began + 0.4
        with watchdog.at(10):  # another thread's is not late
            before = watchdog.seconds
            time.sleep(0.01)
            assert watchdog.seconds > before
    assert watchdog.seconds == 0
    failed = Watchdog()
    with pytest.raises(ValueError, match="failed"), failed.at(1):
        raise ValueError("failed")
    with failed.at(1):  # which says nothing of this one
        time.sleep(0.05)
        assert failed.seconds == 0


def test_idle_threads_share_what_waits_unless_it_is_little(opened, batcher_of):
    model, tokenizer = opened
    done = queue.Queue()
    batcher = batcher_of(model.encoder, num_threads=2, watch=done.put)

    def asked(*words):
        """Tokens of the micro-batches of a request that comes while nobody asks anything."""
        time.sleep(0.1)
        rows = texts(tokenizer, *words)
        (found,) = batcher.submit(Work(rows, (1,))).result(30)
        batch = rows.batch(np.arange(rows.num_items), "packed")
        with torch.inference_mode():
            (expected,) = hidden_states(model.encoder, batch, (1,))
        np.testing.assert_allclose(found, expected, atol=1e-5)
        tokens = []
        while sum(tokens) < rows.lengths.sum():
            tokens.append(done.get(timeout=30).num_tokens)
        return tokens

    assert any(asked(*[18] * 10) == [100, 100] for _ in range(20))
    assert asked(18, 18, 14) == [56], "less than that is not divided"
    batcher.close()
