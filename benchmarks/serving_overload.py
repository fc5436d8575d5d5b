"""Overload a server: does it keep its throughput and refuse the rest quickly?

`python -m benchmarks.serving_overload --text FILE --model FOLDER --work DIR`. Two kinds of turns
alternate: clients that send one request after another, whose rate is the capacity; and requests
that arrive at ten times that rate, however many wait. The clients share the cores with the server,
and sending costs them too; so there is a second figure, the answers per second of the server's own
CPU time. The more texts a request has, the less its refusal weighs.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measurement import surroundings
from benchmarks.results import run_program, write_results
from benchmarks.servers import UVICORN, Served, ask_for_a_while, kinds
from benchmarks.serving import MIX, ROUNDING, draw_texts, offline_scores, write_classifiers
from bert_core.model_folder import load_model_folder

TIMES = 10
_TICK_SECONDS = 0.005
_FILLING_SECONDS = 5.0
"""The time until the queue is full and counting starts."""


@dataclass
class Answers:
    """The time each request was sent, its latency in seconds, and its status."""

    sent: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)


class Caller(asyncio.Protocol):
    """A connection with one request at a time; it returns to `free` after the answer."""

    def __init__(self, free: "deque[Caller]", answers: Answers) -> None:
        self._free, self._answers = free, answers
        self._received = b""
        self._sent = 0.0
        self.is_waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, request: bytes) -> None:
        """Sends a request."""
        self._sent, self.is_waiting = time.perf_counter(), True
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Collects a response and records it once complete."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().split(b"\r\ncontent-length:", 1)[1].split(b"\r\n", 1)[0])
        if len(body) < length:
            return
        self._answers.sent.append(self._sent)
        self._answers.waited.append(time.perf_counter() - self._sent)
        self._answers.statuses.append(int(head.split(b" ", 2)[1]))
        self._received, self.is_waiting = b"", False
        self._free.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Records a connection closed during a request as a failure (status 0)."""
        del exc
        if self.is_waiting:
            self._answers.statuses.append(0)


async def flood(port: int, requests: Sequence[bytes], rate: float, seconds: float) -> Answers:
    """Sends so many requests a second, and waits for the answers to all.

    Between two ticks it sleeps, and then takes all that has come at once: a client that wakes for
    each answer would cost the server a tenth of the cores. So waits are up to a tick too long.
    """
    loop = asyncio.get_running_loop()
    answers, free, everyone = Answers(), deque[Caller](), []
    begin, number = time.perf_counter(), 0
    while (now := time.perf_counter() - begin) < seconds:
        while number < now * rate:
            if not free:
                _, caller = await loop.create_connection(
                    lambda: Caller(free, answers), "127.0.0.1", port
                )
                everyone.append(caller)
                free.append(caller)
            free.popleft().ask(requests[number % len(requests)])
            number += 1
        time.sleep(_TICK_SECONDS)
        for _ in range(2):  # once around: what has come is read, and then handed over
            await asyncio.sleep(0)
    while any(caller.is_waiting for caller in everyone):
        await asyncio.sleep(_TICK_SECONDS)
    for caller in everyone:
        caller.transport.close()
    return answers


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.serving_overload", description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="file with paragraphs")
    parser.add_argument("--model", type=Path, required=True, help="an encoder's model folder")
    parser.add_argument("--work", type=Path, required=True, help="folder for models and logs")
    parser.add_argument(
        "--texts", type=int, nargs="+", default=[1, 8, 32], help="in a request, one after another"
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each kind")
    parser.add_argument("--json", type=Path, default=None, help="where the results go as JSON")
    return parser.parse_args(arguments)


def main() -> None:
    """Runs the benchmark, prints what it comes to and writes the JSON."""
    options = parse_arguments()
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    folder = write_classifiers(options.model, work)[UVICORN]
    texts = draw_texts(options.text, load_model_folder(folder)[2])[MIX]
    server = Served(kinds()[UVICORN], folder, work)
    try:
        server.wait(texts[0], offline_scores(folder, texts[0]), tolerance=ROUNDING)
        sizes = {}
        for size in options.texts:
            some = [texts[first : first + size] for first in range(0, len(texts), size)]
            requests = [server.kind.request(each) for each in some]
            sizes[size] = summarize(
                [measure(server, requests, options.seconds) for _ in range(options.rounds)]
            )
    finally:
        server.end()
    results = {
        "benchmark": "serving_overload",
        "settings": {"seconds": options.seconds, "rounds": options.rounds, "times": TIMES},
        "surroundings": surroundings(torch.device("cpu")) | {"cores": os.cpu_count()},
        "texts_of_a_request": sizes,
    }
    print(json.dumps(results, indent=1))
    write_results(results, options.json)


def summarize(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The medians of the rounds, and of the shares of the capacity that were answered."""
    shares = [each["requests_per_second"] / each["capacity"] for each in rounds]
    own_shares = [
        each["server_seconds_of_an_answer"] / each["server_seconds_of_an_answer_overloaded"]
        for each in rounds
    ]
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    return {
        "share_of_capacity": statistics.median(shares),
        "share_of_capacity_by_server_time": statistics.median(own_shares),
        **medians,
        "rounds": rounds,
    }


def measure(server: Served, requests: Sequence[bytes], seconds: float) -> dict[str, float]:
    """The capacity, and then what becomes of ten times as many."""
    before = server.processor_seconds()
    turn = ask_for_a_while(server.port, requests, clients=32, seconds=seconds)
    cost = server.processor_seconds_since(before) / len(turn.latencies)
    capacity = len(turn.latencies) / turn.seconds
    before, begin = server.processor_seconds(), time.perf_counter()
    answers = asyncio.run(flood(server.port, requests, TIMES * capacity, seconds))
    spent = server.processor_seconds_since(before)
    sent, waited = np.array(answers.sent) - begin, np.array(answers.waited)
    statuses = np.array(answers.statuses)
    assert set(statuses.tolist()) <= {200, 429}, np.unique(statuses, return_counts=True)
    done = sent + waited
    counted = (done > _FILLING_SECONDS) & (done < seconds)
    answered, refused = counted & (statuses == 200), counted & (statuses == 429)
    if not refused.any():
        raise RuntimeError("nothing was refused, as the queue never filled: give more --seconds")
    p50, p99 = np.percentile(waited[refused], (50, 99)) * 1000
    return {
        "capacity": capacity,
        "offered_per_second": len(sent) / seconds,
        "requests_per_second": int(answered.sum()) / (seconds - _FILLING_SECONDS),
        "refused_per_second": int(refused.sum()) / (seconds - _FILLING_SECONDS),
        "server_seconds_of_an_answer": cost,
        "server_seconds_of_an_answer_overloaded": spent / int((statuses == 200).sum()),
        "refused_p50_ms": float(p50),
        "refused_p99_ms": float(p99),
        "refused_within_50_ms": float((waited[refused] < 0.05).mean()),
        "answered_p50_seconds": float(np.median(waited[answered])),
    }


if __name__ == "__main__":
    run_program(main)
