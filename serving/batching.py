"""Continuous batching: requests of many clients -> packed micro-batches of one encoder.

Shapes: R rows, P places (tokens that are asked for), H hidden size, L outputs of a head.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from bert_core.machine import release_memory
from bert_core.model.encoder import Encoder
from bert_core.tasks.encoded_rows import (
    EncodedRows,
    LayoutName,
    TaskBatch,
    gather_items,
    layout_for,
)
from bert_core.tasks.task import FloatArray, hidden_states
from bert_core.text.rng import IntArray
from bert_core.training.loop import autocast

_LOG = logging.getLogger(__name__)

_QUIET_SECONDS = 1.0
"""After this time without requests, freed memory is given back."""

_LEAST_TOKENS = 64
"""Less is not divided among threads: it would cost as much as it saves."""

Head = Callable[[Sequence[Tensor], Tensor], Tensor]
"""Answers [P, L] to the states [P, H] of each layer it reads, and the number of places [R]."""


class OverloadedError(Exception):
    """More is waiting than the server takes; `retry_after` is in seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too much is waiting: ask again in {retry_after:.1f} s")
        self.retry_after = retry_after


class DeadlineError(Exception):
    """A request timed out in the queue."""


@dataclass(frozen=True)
class Batch:
    """What a micro-batch was like, for those who watch; it began at a `time.monotonic`."""

    num_tokens: int
    num_slots: int
    num_requests: int
    begin: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Work:
    """The work of one request: the states of `layers` at the places of its rows.

    Or what a head, of `num_outputs` outputs, makes of them, for each place or `per_row`. Layers
    count from 1, 0 being the embeddings. With `targets` [P] the log probability of that output
    alone at each place, [P, 1]: a vocabulary's worth of outputs need not be kept. `batches` are
    those that had a part of it.
    """

    rows: EncodedRows
    layers: tuple[int, ...]
    head: Head | None = None
    num_outputs: int = 0
    targets: IntArray | None = None
    per_row: bool = False
    batches: list[Batch] = field(default_factory=list)

    @property
    def width(self) -> int:
        """The numbers that the head's answer has at each place."""
        return self.num_outputs if self.targets is None else 1

    def answers_of(self, items: IntArray) -> IntArray:
        """Where the answers for items stand among those of all."""
        return self.rows.answers_of(items, per_row=self.per_row)

    @property
    def kind(self) -> tuple[int, bool]:
        """Parts of one kind are answered together."""
        return id(self.head), self.targets is None

    @property
    def num_tokens(self) -> int:
        """Of all rows, special tokens too."""
        return len(self.rows.input_ids)


class _Waiting:
    """Work that is not finished: its items, longest first, and what has been found so far.

    `tokens_left` are those of the items that no micro-batch has.
    """

    def __init__(self, work: Work, hidden_size: int, deadline: float) -> None:
        self.work = work
        self.deadline = deadline
        self.future: Future[list[FloatArray]] = Future()
        lengths = work.rows.item_lengths
        self._order = np.argsort(-lengths, kind="stable")
        self._lengths: list[int] = lengths[self._order].tolist()
        self._taken = 0
        self._is_found = np.zeros(len(lengths), dtype=np.bool_)
        self.tokens_left = work.num_tokens
        widths = [hidden_size] * len(work.layers) if work.head is None else [work.width]
        count = work.rows.num_answers(per_row=work.per_row)
        self._found = [np.zeros((count, width), dtype=np.float32) for width in widths]

    @property
    def is_late(self) -> bool:
        """Whether its time is over and nothing of it has been begun."""
        return not self._taken and time.monotonic() > self.deadline

    @property
    def is_taken(self) -> bool:
        return self._taken == len(self._lengths)

    def take(self, max_tokens: int, *, at_least: int = 0) -> tuple[IntArray, int]:
        """The next items of at most so many tokens, or as many as `at_least`; and their tokens."""
        first, tokens = self._taken, 0
        for length in self._lengths[first:]:
            if tokens + length > max_tokens and self._taken - first >= at_least:
                break
            tokens += length
            self._taken += 1
        self.tokens_left -= tokens
        return self._order[first : self._taken], tokens

    def keep(self, items: IntArray, answers: Sequence[FloatArray], batch: Batch) -> None:
        """Puts away what a micro-batch found for items; the last ones finish the work."""
        self.work.batches.append(batch)
        where = self.work.answers_of(items)
        for found, answer in zip(self._found, answers, strict=True):
            found[where] = answer
        self._is_found[items] = True
        if self._is_found.all():
            self.finish()

    def finish(self, error: Exception | None = None) -> None:
        """Completes the future with the answers or the error, if it is still awaited."""
        with suppress(InvalidStateError):  # cancelled in this very moment
            if error is None:
                self.future.set_result(self._found)
            else:
                self.future.set_exception(error)


_Part = tuple[_Waiting, IntArray]
"""Some items of a request."""


@dataclass(eq=False)
class Batcher:
    """Computes the work of all requests to one encoder, as it comes, in micro-batches.

    A micro-batch has at most `max_tokens` tokens, or one item. It begins as soon as a thread is
    free, with the requests that are waiting then: requests are batched continuously. Each request
    has an equal share of it, so that a short one passes a long one; a request that gets no share
    is the first of the next one. What waits is divided among the threads that have nothing to do.

    - `num_threads`, each of which computes a micro-batch of its own; on the CPU that is less work
      than one micro-batch on several threads, which wait for each other at every layer
    - `max_waiting_tokens`, above which a request is refused, and so are the next ones until there
      is room for more than one
    - `watch`, called after each micro-batch, on the thread that computes
    """

    encoder: Encoder
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    max_tokens: int = 1024
    max_waiting_tokens: int = 65536
    num_threads: int = 1
    autocast_dtype: torch.dtype | None = None
    watch: Callable[[Batch], None] = lambda _: None

    def __post_init__(self) -> None:
        config = self.encoder.config
        self._layout: LayoutName = layout_for(
            config, self.device, self.autocast_dtype, training=False
        )
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition()
        self._is_closed = self._is_full = False
        self._num_idle = 0
        self.watchdog = Watchdog()
        self._tokens_per_second = 0.0
        self._threads = [
            threading.Thread(target=self._run, name=f"encoder-{number}", daemon=True)
            for number in range(self.num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting_tokens(self) -> int:
        """Of all work that no micro-batch has taken."""
        with self._changed:
            return self._count_tokens()

    @property
    def is_alive(self) -> bool:
        """Whether its threads compute what comes."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def is_full(self) -> bool:
        """Whether a request would be turned away, whatever it asks."""
        return self._is_full

    def check_room(self) -> None:
        """Raises `OverloadedError` where it is full."""
        if self._is_full:
            raise self._overloaded(self.max_waiting_tokens)  # about: to count takes time

    def submit(self, work: Work, seconds: float = float("inf")) -> Future[list[FloatArray]]:
        """Queues work that has to start within `seconds`; returns a future of its answers.

        They are those of the head, [P, L], or the states of each layer, [P, H], at all places; it
        may also raise `DeadlineError`. A cancelled future is not computed.

        Raises `OverloadedError` where too much is waiting.
        """
        waiting = _Waiting(work, self.encoder.config.hidden_size, time.monotonic() + seconds)
        if not work.rows.num_items:
            waiting.finish()
            return waiting.future
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the batcher is closed")
            self.check_room()
            before = self._count_tokens()
            if before and before + work.num_tokens > self.max_waiting_tokens:
                self._is_full = before > self._room_from
                raise self._overloaded(before)
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.future

    def close(self, *, finish: bool = True) -> None:
        """Ends the threads, when what is waiting is finished, or with the micro-batch each is at.

        What is then left over is cancelled.
        """
        with self._changed:
            self._is_closed = True
            if not finish:
                for waiting in self._waiting:
                    waiting.future.cancel()
                self._waiting = []
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def _room_from(self) -> float:
        """So many tokens wait when a full server takes requests again."""
        return self.max_waiting_tokens * 15 / 16

    def _overloaded(self, num_tokens: int) -> OverloadedError:
        return OverloadedError(num_tokens / max(self._tokens_per_second, 1.0))

    def _count_tokens(self) -> int:
        return sum(waiting.tokens_left for waiting in self._waiting)

    def _run(self) -> None:
        while True:
            parts: list[_Part] = []  # so that no replaced model is kept while it waits
            self._wait_for_work()
            with self._changed:
                if not self._waiting and self._is_closed:
                    return
                if not (parts := self._take()):
                    continue
            try:
                batch = self._compute(parts)
            except Exception as error:  # noqa: BLE001 - it fails its request, the others continue
                self._compute_apart(parts, error)
                continue
            try:
                self.watch(batch)
            except Exception:  # the answers are right without it
                _LOG.exception("watching a micro-batch")

    def _wait_for_work(self) -> None:
        """Returns when something is waiting, or when it is closed."""
        with self._changed:
            self._num_idle += 1
            has_work = self._changed.wait_for(self._has_work, _QUIET_SECONDS)
            self._num_idle -= 1
        if has_work:
            return
        release_memory()  # now no request waits for it
        with self._changed:
            self._num_idle += 1
            self._changed.wait_for(self._has_work)
            self._num_idle -= 1

    def _has_work(self) -> bool:
        return bool(self._waiting) or self._is_closed

    def _take(self) -> list[_Part]:
        """The items of the next micro-batch, by request; leaves out cancelled requests."""
        for waiting in self._waiting:
            if waiting.is_late:
                waiting.finish(DeadlineError("the request timed out in the queue"))
        self._waiting = [waiting for waiting in self._waiting if not waiting.future.done()]
        if not self._waiting:
            self._is_full = False
            return []
        room = -(-self._count_tokens() // (1 + self._num_idle))
        room = min(max(room, _LEAST_TOKENS), self.max_tokens)
        share = max(room // len(self._waiting), 1)
        left = room
        taken: dict[_Waiting, list[IntArray]] = {}
        for most in (share, room):  # to each its share, then what is left to the first
            for waiting in self._waiting:
                items, tokens = waiting.take(min(most, left), at_least=0 if taken else 1)
                if len(items):
                    taken.setdefault(waiting, []).append(items)
                    left -= tokens
        self._is_full = self._is_full and self._count_tokens() > self._room_from
        if any(not waiting.is_taken for waiting in self._waiting):
            self._changed.notify()
        # A request without a share of this one comes first in the next.
        self._waiting = sorted(
            (waiting for waiting in self._waiting if not waiting.is_taken),
            key=taken.__contains__,
        )
        # One after another that have the same head, which then answers all of them at once.
        parts = [(waiting, np.concatenate(items)) for waiting, items in taken.items()]
        return sorted(parts, key=lambda part: part[0].work.kind)

    @torch.inference_mode()
    def _compute(self, parts: Sequence[_Part]) -> Batch:
        begin = time.monotonic()
        rows = gather_items([(waiting.work.rows, items) for waiting, items in parts])
        batch = rows.batch(np.arange(rows.num_items), self._layout).to(self.device)
        layers = sorted({layer for waiting, _ in parts for layer in waiting.work.layers})
        with self.watchdog.at(batch.num_real_tokens), autocast(self.device, self.autocast_dtype):
            states = hidden_states(self.encoder, batch, layers)
            answers = list(self._answers(parts, dict(zip(layers, states, strict=True)), batch))
        seconds = time.monotonic() - begin
        done = Batch(batch.num_real_tokens, batch.num_slots, len(parts), begin, seconds)
        for (waiting, items), answer in zip(parts, answers, strict=True):
            waiting.keep(items, answer, done)
        self._tokens_per_second = batch.num_real_tokens / seconds * self.num_threads
        return done

    def _answers(
        self, parts: Sequence[_Part], states: Mapping[int, Tensor], batch: TaskBatch
    ) -> Iterator[list[FloatArray]]:
        """What is to be found for the items of each part, of the states [P, H] of layers."""
        first_row = first_place = 0
        for _, group in groupby(parts, key=lambda part: part[0].work.kind):
            some = list(group)
            head = some[0][0].work.head
            num_places = [len(waiting.work.rows.places_of(items)) for waiting, items in some]
            num_rows = sum(len(waiting.work.rows.rows_of(items)) for waiting, items in some)
            places = slice(first_place, first_place + sum(num_places))
            rows = slice(first_row, first_row + num_rows)
            first_row, first_place = rows.stop, places.stop
            bounds = np.cumsum(num_places)[:-1]
            if head is not None:
                read = [states[layer][places] for layer in some[0][0].work.layers]
                found = head(read, batch.place_counts[rows])
                if (wanted_outputs := _targets(some)) is not None:
                    found = found.float().log_softmax(1).gather(1, wanted_outputs.to(found.device))
                counts = [len(waiting.work.answers_of(items)) for waiting, items in some]
                outputs = np.split(_on_host(found), np.cumsum(counts)[:-1])
                yield from ([answer] for answer in outputs)
                continue
            wanted = {layer for waiting, _ in some for layer in waiting.work.layers}
            of_parts = {
                layer: np.split(_on_host(states[layer][places]), bounds) for layer in wanted
            }
            for number, (waiting, _) in enumerate(some):
                yield [of_parts[layer][number] for layer in waiting.work.layers]

    def _compute_apart(self, parts: Sequence[_Part], error: Exception) -> None:
        """Computes the requests of a failed micro-batch alone; those that fail get the error."""
        if len(parts) > 1:
            for part in parts:
                try:
                    self._compute([part])
                except Exception as its_own:  # noqa: BLE001 - see above
                    self._compute_apart([part], its_own)
            return
        failed = parts[0][0]
        with self._changed:
            self._waiting = [waiting for waiting in self._waiting if waiting is not failed]
        failed.finish(error)


def _targets(parts: Sequence[_Part]) -> Tensor | None:
    """The outputs that parts of one kind want at their places, [P, 1]; None of all outputs."""
    wanted = [
        waiting.work.targets[waiting.work.rows.places_of(items)]
        for waiting, items in parts
        if waiting.work.targets is not None
    ]
    return torch.from_numpy(np.concatenate(wanted)).unsqueeze(1) if wanted else None


def _on_host(states: Tensor) -> FloatArray:
    return states.float().cpu().numpy()


_SLOWER = 10
"""A micro-batch may take this many times longer a token than the last one: the processor may be
busy, and long rows cost more."""


class Watchdog:
    """Measures how late running micro-batches are."""

    def __init__(self) -> None:
        self._due: dict[object, float] = {}
        self._seconds_per_token = float("inf")  # unknown before the first one

    @contextmanager
    def at(self, num_tokens: int) -> Iterator[None]:
        """Watches a micro-batch of so many tokens, which is computed inside `with`."""
        batch, begin = object(), time.monotonic()
        self._due[batch] = begin + _SLOWER * num_tokens * self._seconds_per_token
        try:
            yield
            self._seconds_per_token = (time.monotonic() - begin) / num_tokens
        finally:
            del self._due[batch]

    @property
    def seconds(self) -> float:
        """By how many seconds the latest micro-batch is late; 0 where none is."""
        first = min(list(self._due.values()), default=float("inf"))
        return max(0.0, time.monotonic() - first)
