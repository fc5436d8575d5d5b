"""Compare answers over HTTP, of long contexts in windows, with offline predictions.

`python -m benchmarks.served_squad --data DIR --model FOLDER`. All questions of SQuAD's dev set go
to `python -m serving`, from several clients and several per request, and through the offline
predictor; both are compared, and measured against the gold answers.
"""

import argparse
import json
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import run_program, write_results
from benchmarks.servers import UVICORN, Connection, Served, kinds, request_of
from bert_core.predictor import load_predictor
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question

CLIENTS = 4
QUESTIONS_OF_A_REQUEST = 8


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.served_squad", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of SQuAD")
    parser.add_argument("--model", type=Path, required=True, help="a model for questions")
    parser.add_argument("--examples", type=int, default=None, help="questions; by default all")
    parser.add_argument("--json", type=Path, default=None, help="where the results go as JSON")
    return parser.parse_args(arguments)


def main() -> None:
    """Compares both, prints the results and writes the JSON."""
    options = parse_arguments()
    predictor = load_predictor(options.model)
    # Not the predictor's task, whose data may be others, as with the demo's model.
    examples = QuestionAnswering().examples(options.data, "dev")[: options.examples]
    predictions, rows = predictor.predict_examples(examples)
    told = ask_all(options.model.absolute(), examples)
    offline = [each["text"] for each in predictions]
    served = [each["answers"][0]["text"] if each["answers"] else "" for each in told]
    mine = predictor.task.metrics(predictions, examples)
    theirs = predictor.task.metrics(
        [{**each, "text": text} for each, text in zip(predictions, served, strict=True)], examples
    )
    scores = [
        abs(each["answers"][0]["score"] - prediction["score"])
        for each, prediction in zip(told, predictions, strict=True)
        if each["answers"] and each["answers"][0]["text"] == prediction["text"]
    ]
    results = {
        "benchmark": "served_squad",
        "questions": len(examples),
        "in_windows": int((np.bincount(rows.example) > 1).sum()),
        "same_answer": sum(map(str.__eq__, offline, served)) / len(examples),
        "largest_score_difference": max(scores),
        "offline": {name: mine[name] for name in ("exact_match", "f1")},
        "served": {name: theirs[name] for name in ("exact_match", "f1")},
    }
    print(json.dumps(results, indent=1))
    write_results(results, options.json)


def ask_all(folder: Path, examples: Sequence[Question]) -> list[dict[str, Any]]:
    """The server's answer to each question."""
    kind = replace(
        kinds()[UVICORN],
        path="/v1/qa",
        body=lambda text: {"inputs": {"question": text, "context": text}, "overflow": "window"},
        scores=lambda answer: {"n_tokens": answer["results"][0]["n_tokens"]},
    )
    numbers = range(0, len(examples), QUESTIONS_OF_A_REQUEST)
    told: list[dict[str, Any]] = [{} for _ in examples]
    with tempfile.TemporaryDirectory() as work:
        server = Served(kind, folder, Path(work))
        try:
            server.wait("cat", {"n_tokens": 5}, tolerance=1)

            def ask(client: int) -> None:
                connection = Connection(server.port)
                for first in numbers[client::CLIENTS]:
                    some = examples[first : first + QUESTIONS_OF_A_REQUEST]
                    inputs = [{"question": e.question, "context": e.context} for e in some]
                    body = json.dumps({"inputs": inputs, "overflow": "window"}).encode()
                    status, content = connection.ask(request_of("/v1/qa", body))
                    assert status == 200, content
                    told[first : first + len(some)] = json.loads(content)["results"]
                connection.close()

            threads = [threading.Thread(target=ask, args=(each,)) for each in range(CLIENTS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            server.end()
    return told


if __name__ == "__main__":
    run_program(main)
