"""Serves the demo's models and asks each route one question about the documentation.

`python -m serving` is a process of its own, which ends with the demo, however that ends.
"""

import http.client
import json
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from bert_core.errors import UserError
from workflows.demonstration.questions import DemoQuestions

Serve = Literal["auto", "yes", "no"]

LOG = "server.log"
_READY = re.compile(r"ready at (http://\S+?),")
_STOP_SECONDS = 10
_AGAIN = "http://127.0.0.1:8000/docs"
"""Where the server's command has the page when no port is given."""

_END_WITH_THE_DEMO = 'read -r server; cat; kill "$server"'
"""For a shell that reads a pipe from the demo: that ends when the demo does, be it by SIGKILL."""
_ROUTE, _MILLISECONDS, _TEXT = 22, 6, 68
"""Widths of the columns; they and what is between them stay below 100."""
_PATIENCE_SECONDS = 60


def serve_demo(
    models: Mapping[str, Path], questions: DemoQuestions, folder: Path, serve: Serve
) -> None:
    """Serves the models and asks them; goes on serving until Ctrl-C where somebody is looking.

    `serve` says "yes" to that also where nobody is, and "no" to serving at all. What the server
    says on standard error lies in `folder`. Raises `UserError` where it does not start or answer.
    """
    command = serving_command(models)
    if serve == "no":
        print_command(f"to serve the models, the API's page at {_AGAIN}:", command)
        return
    stay = serve == "yes" or sys.stdout.isatty()
    began = time.monotonic()
    print(f"serving  {', '.join(models)}: starting", flush=True)
    with running_server([*command, "--port", "0", "--no-log_requests"], folder / LOG) as server:
        seconds = time.monotonic() - began
        print(f"serving  {server.address} after {seconds:.1f} s\n\n{TITLES}", flush=True)
        print_answers(server.address, questions)
        if stay:
            server.stay()
    print_command(f"ended; the same server again, its page at {_AGAIN}:", command)


def print_answers(address: str, questions: DemoQuestions) -> None:
    """Asks every route, and prints each answer as it comes."""
    with closing(Connection(address)) as connection:
        for reply in ask_everything(connection, questions):
            print(reply, flush=True)
        left_out = routes_left_out(connection.ask("/info")["models"]["encoder"]["heads"])
    if left_out:
        print(f"left out: {', '.join(left_out)}: the encoder has no such pre-training heads")
    print(f"\nto try them     {address}/\nthe API's page  {address}/docs", flush=True)


def serving_command(models: Mapping[str, Path]) -> list[str]:
    """The command that serves model folders under these names."""
    given = [("--model", f"{name}={path.absolute()}") for name, path in models.items()]
    return [sys.executable, "-m", "serving", *chain.from_iterable(given)]


def print_command(title: str, command: list[str]) -> None:
    """Prints a command to be copied: a line for each model, the interpreter as seen from here."""
    here, interpreter = Path.cwd(), Path(command[0])
    if interpreter.is_relative_to(here):
        command = [str(interpreter.relative_to(here)), *command[1:]]
    print(f"{title}\n  " + shlex.join(command).replace(" --model ", " \\\n    --model "))


class RunningServer:
    """A server that is ready."""

    def __init__(self, process: subprocess.Popen[str], address: str, log: Path) -> None:
        self._process = process
        self.address = address
        self._log = log

    def stay(self) -> None:
        """Returns when the user has had enough of it; raises `UserError` if it ends by itself."""
        try:
            print("serving until Ctrl-C", flush=True)
            code = self._process.wait()
        except KeyboardInterrupt:
            print()
            return
        raise UserError(f"the server ended, with exit code {code}", str(self._log), "see there")


@contextmanager
def running_server(command: list[str], log: Path) -> Iterator[RunningServer]:
    """Starts a server and waits until it is ready; it has ended when this ends.

    What it says on standard error goes to the file `log`. Raises `UserError`, with its last line,
    for one that does not start.
    """
    with ExitStack() as started:
        with interrupts_later(), log.open("w", encoding="utf-8") as errors:
            watch = subprocess.Popen(
                ["sh", "-c", _END_WITH_THE_DEMO],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is not for it
                text=True,
            )
            started.callback(dismiss, watch)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            started.callback(end, process)
            print(process.pid, file=watch.stdin, flush=True)
        address = wait_until_ready(process)
        if address is None:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise UserError(
                f"the server did not start, exit code {process.wait()}",
                said[-1].removeprefix("error: ") if said else "it said nothing",
                f"all that it said is in {log}",
            )
        yield RunningServer(process, address, log)


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Raises `KeyboardInterrupt` in the end only: within, a process would be lost half started."""
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def wait_until_ready(process: subprocess.Popen[str]) -> str | None:
    """The address that a server says it is ready at; None when it ended before."""
    assert process.stdout is not None
    found = (_READY.search(line) for line in process.stdout)
    return next((match[1] for match in found if match), None)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process, kindly if it lets itself be; a second Ctrl-C only makes that quicker."""
    with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
        process.terminate()
        process.wait(_STOP_SECONDS)
    process.kill()
    process.communicate()


def dismiss(watch: subprocess.Popen[str]) -> None:
    """Ends the watch over a process that has ended, whose id may become another's."""
    watch.kill()
    watch.communicate()


@dataclass(frozen=True)
class Reply:
    """What a route was asked and what it said, in words, and how long that took."""

    route: str
    question: str
    answer: str
    milliseconds: float

    def __str__(self) -> str:
        """Two or three lines: the question on the first, the answer below it."""
        first = f"{self.route:<{_ROUTE}}{self.milliseconds:>{_MILLISECONDS}.1f}  "
        question = textwrap.shorten(self.question, _TEXT, placeholder=" …")
        answer = textwrap.wrap(self.answer, _TEXT - 2, max_lines=2, placeholder=" …")
        return "\n".join([first + question, *(" " * (len(first) + 2) + line for line in answer)])


TITLES = f"{'route':<{_ROUTE}}{'ms':>{_MILLISECONDS}}  asked, and answered"


class Connection:
    """A connection to a server, which says how long the last answer took."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(
            urlsplit(address).netloc, timeout=_PATIENCE_SECONDS
        )
        self.address = address
        self.milliseconds = 0.0

    def close(self) -> None:
        """Lets go of the server."""
        self._connection.close()

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - JSON
        """The answer to a body by POST, or to GET without one.

        Raises `UserError` for a server that refuses or does not answer.
        """
        began = time.perf_counter()
        try:
            if body is None:
                self._connection.request("GET", path)
            else:
                kind = {"Content-Type": "application/json"}
                self._connection.request("POST", path, json.dumps(body), kind)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise UserError(
                f"the server does not answer, {error or type(error).__name__}",
                self.address + path,
                "the same command asks again",
            ) from error
        self.milliseconds = 1000 * (time.perf_counter() - began)
        if response.status != http.HTTPStatus.OK:
            said = content.decode(errors="replace")[:300]
            raise UserError(
                f"the server refused, {response.status}: {said}",
                self.address + path,
                "the same command asks again",
            )
        return json.loads(content)


def ask_everything(server: Connection, asked: DemoQuestions) -> Iterator[Reply]:
    """One question to each route; of pre-training heads, those that the encoder has."""
    info = server.ask("/info")
    yield from ask_operation(server)
    yield from ask_finetuned(server, asked)
    yield from ask_pretraining_heads(server, asked, info["models"]["encoder"]["heads"])
    yield from ask_encoder(server, asked)
    yield from ask_as_others_do(server, asked)


def ask_operation(server: Connection) -> Iterator[Reply]:
    """Whether it lives, and what is loaded."""
    answer = server.ask("/health")
    yield Reply("/health", "How is the server?", answer["status"], server.milliseconds)
    answer = server.ask("/info")
    told = ", ".join(
        name + (f" ({each['task']})" if each["task"] else f" ({each['num_hidden_layers']} layers)")
        for name, each in answer["models"].items()
    )
    yield Reply("/info", "What is loaded?", told, server.milliseconds)


def ask_finetuned(server: Connection, asked: DemoQuestions) -> Iterator[Reply]:
    """What the three tasks were learned for, and what a label hangs on."""
    body: dict[str, Any] = {"model": "library", "inputs": asked.passage}
    result = server.ask("/v1/classify", body | {"top_k": 3})["results"][0]
    scores = ", ".join(f"{each['label']} {each['score']:.2f}" for each in result["scores"])
    question = f"Of which library is “{asked.passage}”?"
    yield Reply(
        "/v1/classify", question, f"{scores}; it is of {asked.library}", server.milliseconds
    )

    answer = server.ask("/v1/explain", body)
    pieces = [
        (token["token"], amount)
        for token, amount in zip(answer["tokens"], answer["attributions"], strict=True)
        if not token["special"]
    ]
    most = sorted(pieces, key=lambda each: abs(each[1]), reverse=True)[:4]
    told = ", ".join(f"{token} {amount:+.2f}" for token, amount in most)
    question = f"Which of its tokens speak for {answer['label']}, or against?"
    heads = len(answer["attention"][0])
    told += f"; with the attention of {len(answer['layers'])} × {heads} heads"
    yield Reply("/v1/explain", question, told, server.milliseconds)

    answer = server.ask("/v1/ner", {"model": "parameters", "inputs": asked.described})
    found = [
        f"{each['text']} {each['type']} {each['score']:.2f}"
        for each in answer["results"][0]["entities"]
    ]
    true = ", ".join(f"{text} {kind}" for kind, text in asked.entities)
    told = f"{', '.join(found) or 'none'}; there are {true or 'none'}"
    question = f"Names in “{asked.described}”"
    yield Reply("/v1/ner", question, told, server.milliseconds)

    inputs = {"question": asked.question, "context": asked.context}
    body = {"model": "answers", "inputs": inputs, "overflow": "window"}
    answers = server.ask("/v1/qa", body)["results"][0]["answers"]
    best = [f"“{_cut(each['text'])}” {each['probability']:.2f}" for each in answers]
    told = f"{', '.join(best) or 'none'}; the docstring has “{_cut(asked.answer)}”"
    yield Reply("/v1/qa", asked.question, told, server.milliseconds)


def ask_pretraining_heads(
    server: Connection, asked: DemoQuestions, heads: Sequence[str]
) -> Iterator[Reply]:
    """What pre-training itself taught, as far as the encoder has kept the heads for it."""
    if "masked_token" in heads:
        body = {"model": "encoder", "inputs": asked.masked}
        (mask,) = server.ask("/v1/fill-mask", body)["results"][0]["masks"]
        words = ", ".join(f"“{each['token']}” {each['score']:.2f}" for each in mask["candidates"])
        told = f"{words}; it was “{asked.missing}”"
        yield Reply("/v1/fill-mask", f"“{asked.masked}”", told, server.milliseconds)

    if "next_sentence" in heads:
        pairs = [
            {"text": asked.before, "text_pair": each} for each in (asked.sentence, asked.elsewhere)
        ]
        answer = server.ask("/v1/next-sentence", {"model": "encoder", "inputs": pairs})
        follows, another = (each["is_next"] for each in answer["results"])
        told = f"{follows:.2f} “{asked.sentence}”, as it does; "
        told += f"{another:.2f} a sentence of {asked.other_library}"
        question = f"What follows “{asked.before}”?"
        yield Reply("/v1/next-sentence", question, told, server.milliseconds)

    if "masked_token" in heads:
        backwards = " ".join(reversed(asked.passage.split()))
        body = {"model": "encoder", "inputs": [asked.passage, backwards]}
        results = server.ask("/v1/pseudo-perplexity", body)["results"]
        forth, back = (result["pseudo_perplexity"] for result in results)
        told = f"{forth:,.0f}; {back:,.0f} with its words in the reverse order"
        question = f"How surprising is “{asked.passage}”?"
        yield Reply("/v1/pseudo-perplexity", question, told, server.milliseconds)


def routes_left_out(heads: Sequence[str]) -> list[str]:
    """Those that ask a pre-training head that the encoder does not have."""
    needed = {
        "/v1/fill-mask": "masked_token",
        "/v1/next-sentence": "next_sentence",
        "/v1/pseudo-perplexity": "masked_token",
    }
    return [route for route, head in needed.items() if head not in heads]


def ask_encoder(server: Connection, asked: DemoQuestions) -> Iterator[Reply]:
    """What every encoder can be asked: vectors, cosines, tokens."""
    passage = f"“{asked.passage}”"
    body: dict[str, Any] = {"model": "encoder", "inputs": asked.passage}
    vector = server.ask("/v1/features", body)["results"][0]["vector"]
    yield Reply("/v1/features", passage, _numbers(vector), server.milliseconds)

    others = [asked.beside, asked.elsewhere]
    body = {"model": "encoder", "source": asked.passage, "inputs": others}
    same, another = (each["score"] for each in server.ask("/v1/similarity", body)["results"])
    told = f"{same:.3f} another passage of {asked.library}, {another:.3f} one of "
    told += asked.other_library
    yield Reply("/v1/similarity", f"How near is {passage}?", told, server.milliseconds)

    (result,) = server.ask("/v1/tokenize", {"model": "encoder", "inputs": asked.passage})["results"]
    told = f"{result['n_tokens']}: {' '.join(each['token'] for each in result['tokens'])}"
    yield Reply("/v1/tokenize", passage, told, server.milliseconds)

    ids = [each["id"] for each in result["tokens"]]
    (text,) = server.ask("/v1/decode", {"model": "encoder", "ids": ids})["results"]
    yield Reply("/v1/decode", " ".join(map(str, ids)), f"“{text}”", server.milliseconds)


def ask_as_others_do(server: Connection, asked: DemoQuestions) -> Iterator[Reply]:
    """In the words of other people's clients: Hugging Face's, TEI's, OpenAI's."""
    inputs = {"question": asked.question, "context": asked.context}
    answer = server.ask("/hf/question-answering?model=answers", {"inputs": inputs})
    told = f"“{_cut(answer['answer'])}” {answer['score']:.2f}"
    yield Reply("/hf/question-answering", asked.question, told, server.milliseconds)

    vector = server.ask("/embed?model=encoder", {"inputs": asked.passage})[0]
    yield Reply("/embed", f"“{asked.passage}”", _numbers(vector), server.milliseconds)

    answer = server.ask("/v1/embeddings", {"model": "encoder", "input": asked.passage})
    told = f"{_numbers(answer['data'][0]['embedding'])}, {answer['usage']['total_tokens']} tokens"
    yield Reply("/v1/embeddings", f"“{asked.passage}”", told, server.milliseconds)


def _numbers(vector: Sequence[float]) -> str:
    return f"{len(vector)} numbers: {' '.join(f'{each:+.3f}' for each in vector[:4])} …"


def _cut(text: str) -> str:
    """So much of a text that two of them have room in an answer."""
    return textwrap.shorten(text, 48, placeholder=" …")
