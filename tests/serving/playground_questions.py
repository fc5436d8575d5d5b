"""What is asked on each page of the playground, and what a person should then see."""

import contextlib
import io
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DOCUMENTS = ["a dog", "the mat", "Ann ran"]
CONTEXT = "🏰 Ann and Bob 👩‍🔬 sat on a mat. The cat ran."


@dataclass(frozen=True)
class Question:
    """A page by its title; the route and the body that ask the same as the typed text.

    `seen` gives, for the answer to it, the texts of the nodes that a selector finds.
    """

    title: str
    path: str
    body: dict[str, Any]
    typed: dict[str, str]
    seen: Callable[[Any], dict[str, list[str]]]


def score(value):
    return f"{value:.3f}".replace("-", "−")


def signed(value):
    return f"{'−' if value < 0 else '+'}{abs(value):.2f}"


def as_bars(names, values):
    return {".bar-name": names, ".bar-value": list(map(score, values))}


def classified(content):
    scores = content["results"][0]["scores"]
    return as_bars([each["label"] for each in scores], [each["score"] for each in scores])


def tagged(content):
    found = content["results"][0]["entities"]
    assert found
    return {
        ".entity-text": [each["text"] for each in found],
        ".entity-kind": [f" {each['type']} {score(each['score'])}" for each in found],
        "tbody td:nth-child(3)": [f"{each['start']}–{each['end']}" for each in found],
    }


def answered(content):
    found = content["results"][0]["answers"]
    assert len(found) == 3
    return {
        ".pick-text": [each["text"] for each in found],
        ".pick-value": [score(each["probability"]) for each in found],
        "mark": [found[0]["text"]],
    }


def searched(content):
    found = content["results"]
    assert len(found) == 3
    return as_bars(
        [DOCUMENTS[each["index"]] for each in found], [each["relevance_score"] for each in found]
    )


def filled(content):
    (mask,) = content["results"][0]["masks"]
    candidates = mask["candidates"]
    return as_bars(
        [candidate["token"] for candidate in candidates],
        [candidate["score"] for candidate in candidates],
    )


def followed(content):
    probability = content["results"][0]["is_next"]
    return as_bars(["Follows", "Does not follow"], [probability, 1 - probability])


def judged(content):
    tokens = content["results"][0]["tokens"]
    return {
        ".token-text": [token["text"] for token in tokens],
        ".token-value": [signed(token["log_probability"]) for token in tokens],
    }


def ranked(content):
    scores = [result["score"] for result in content["results"]]
    names = dict(zip(scores, ["a dog", "the mat", "Ann ran"], strict=True))
    best = sorted(scores, reverse=True)
    return as_bars([names[each] for each in best], best)


def explained(content):
    (layer,) = content["attention"]
    return {
        "ol .token-value": list(map(signed, content["attributions"])),
        "fieldset .token-text": [token["token"] for token in content["tokens"]],
        "fieldset .token-value": [f"{each:.2f}" for each in layer[0][1]],
    }


def cut(content):
    tokens = content["results"][0]["tokens"]
    return {
        ".token-text": [token["token"] for token in tokens],
        ".token-value": [str(token["id"]) for token in tokens],
    }


QUESTIONS = {
    "classify": Question(
        "Classification",
        "/v1/classify",
        {"model": "sentiment", "inputs": "the cat sat"},
        {"Text": "the cat sat"},
        classified,
    ),
    "zero-shot": Question(
        "Labels of your own",
        "/v1/zero-shot",
        {"model": "entailment", "inputs": "the cat sat", "labels": ["cats", "mats"]},
        {"Text": "the cat sat", "Labels, one per line": "cats\nmats"},
        classified,
    ),
    "ner": Question(
        "Named entities",
        "/v1/ner",
        {"model": "entities", "inputs": "🎉 Ann ran"},
        {"Text": "🎉 Ann ran"},
        tagged,
    ),
    "qa": Question(
        "Questions",
        "/v1/qa",
        {"inputs": {"question": "who sat", "context": CONTEXT}, "top_k": 3, "overflow": "window"},
        {"Question": "who sat", "Context": CONTEXT},
        answered,
    ),
    "search": Question(
        "Search",
        "/v1/rerank",
        {"model": "relevance", "query": "the cat", "documents": DOCUMENTS},
        {"Query": "the cat", "Documents, one per line": "\n".join(DOCUMENTS)},
        searched,
    ),
    "fill-mask": Question(
        "Fill the mask",
        "/v1/fill-mask",
        {"model": "encoder", "inputs": "the [MASK] sat"},
        {"Text": "the [MASK] sat"},
        filled,
    ),
    "next-sentence": Question(
        "Next sentence",
        "/v1/next-sentence",
        {"model": "encoder", "inputs": {"text": "the cat sat", "text_pair": "it ran"}},
        {"First text": "the cat sat", "Second text": "it ran"},
        followed,
    ),
    "pseudo-perplexity": Question(
        "Pseudo-perplexity",
        "/v1/pseudo-perplexity",
        {"model": "encoder", "inputs": "the cat sat"},
        {"Text": "the cat sat"},
        judged,
    ),
    "similarity": Question(
        "Nearest texts",
        "/v1/similarity",
        {"model": "encoder", "source": "the cat", "inputs": ["a dog", "the mat", "Ann ran"]},
        {
            "Text": "the cat",
            "Texts to compare, one per line": "a dog\n\nthe mat\nAnn ran\n",
        },
        ranked,
    ),
    "attention": Question(
        "Attention",
        "/v1/explain",
        {"model": "sentiment", "inputs": "the cat sat", "layers": [1]},
        {"Text": "the cat sat"},
        explained,
    ),
    "tokens": Question(
        "Tokens",
        "/v1/tokenize",
        {"model": "encoder", "inputs": "the 🎉 cat"},
        {"Text": "the 🎉 cat"},
        cut,
    ),
}
"""By what stands in the page's address."""


def assert_programs_ask_the_same(page, server, content):
    """Runs what the page tells a programmer to run."""
    command, program = page.locator("pre").all_inner_texts()
    curl, address, _, header, _, body = shlex.split(command.replace("\\\n", " "))
    assert curl == "curl" and address.startswith(f"http://{server.host}:{server.port}/")
    path = address.removeprefix(f"http://{server.host}:{server.port}")
    status, found = server.ask(path, body.encode(), headers=dict([header.split(": ")]))
    for each in (found, content):
        each.pop("id", None)  # of a request
    assert status == 200 and found == content
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, names)
    results = names["result"] if isinstance(names["result"], list) else [names["result"]]
    wanted = content.get("results", [content])
    if "relevance_score" in wanted[0]:  # best first, and the client's in the documents' order
        wanted = sorted(wanted, key=lambda each: each["index"])
        wanted = [{"score": each["relevance_score"]} for each in wanted]
    for one, other in zip(results, wanted, strict=True):
        assert other.items() <= one.model_dump(exclude_none=True).items()
    assert printed.getvalue()
