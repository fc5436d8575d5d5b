"""Questions go to a server of the demo's models over HTTP; lines to read come out.

Each route of docs/api.md that is for asking is asked one question about the documentation.
"""

import http.client
import json
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from bert_core.errors import UserError
from workflows.demonstration.questions import DemoQuestions

_ROUTE, _MILLISECONDS, _TEXT = 22, 6, 68
"""Widths of the columns; they and what is between them stay below 100."""
_PATIENCE_SECONDS = 60


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
        forth, back = (each["pseudo_perplexity"] for each in results)
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
