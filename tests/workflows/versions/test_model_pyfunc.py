"""What MLflow's users get of a version: the task of its model, in-process and over HTTP."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pandas as pd
import pytest
import torch
from pretraining_runs import REPOSITORY
from registered_models import copy_store, empty_store

from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.tasks.answers import classified
from bert_core.tasks.catalog import task_config
from bert_core.tasks.classification import Text
from bert_core.tasks.multiple_choice import Choices, MultipleChoice
from bert_core.tasks.squad import Question
from bert_core.tasks.task import add_task_head
from workflows.runs.mlflow_run import artifact_location, open_client
from workflows.versions.model_pyfunc import QUESTION, TEXT, input_rows, signature_and_example
from workflows.versions.registration import register_model_folder

TEXTS = ["the cat sat on the mat", "a dog", "Zoë Müller of the Franco-German Bank " * 20]
PAIRS = [{"text": text, "text_pair": "the mat"} for text in TEXTS]
QUESTIONS = [{"question": "who sat", "context": text} for text in TEXTS]
CHOICES = [{"context": "the cat", "choices": ["sat", "is a dog"]}] * 2
MASKED = ["the cat sat on the [MASK]", "[MASK] dog"]
ASKED = {
    "sentiment": TEXTS,
    "paraphrase": PAIRS,
    "topics": TEXTS,
    "grade": TEXTS,
    "entities": TEXTS,
    "answers": QUESTIONS,
    "choices": CHOICES,
    "vectors": TEXTS,
    "encoder": MASKED,
}
"""What each model is asked."""

PREDICTING = """
import json, sys, warnings
import mlflow
asked = json.load(open(sys.argv[1]))
answers = {}
for name, inputs in asked.items():
    address = f"models:/{name}/1" if name != "encoder" else "models:/encoder@champion"
    model = mlflow.pyfunc.load_model(address)
    answers[name] = {
        "answers": model.predict(inputs),
        "example": model.predict(model.input_example),
        "has_signature": model.metadata.signature is not None,
    }
import bert_core
print(bert_core.__file__)
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def models(small_models, tmp_path_factory):
    """The folders of a model for each kind of question, by name."""
    root, folders = tmp_path_factory.mktemp("models"), dict(small_models)
    _, model, tokenizer = load_model_folder(folders["encoder"])
    save_model_folder(root / "vectors", Bert(model.encoder, {}), tokenizer, card="")
    task = MultipleChoice(choice_columns=("choices",), max_length=32)
    torch.manual_seed(1)
    add_task_head(model, task)
    config = task_config("multiple_choice", task)
    save_model_folder(root / "choices", model, tokenizer, card="", extra_config=config)
    return folders | {name: root / name for name in ("vectors", "choices")}


@pytest.fixture(scope="module")
def store(models, tmp_path_factory):
    """A store with each model as version 1 under its name."""
    uri = copy_store(empty_store(), tmp_path_factory.mktemp("pyfunc"))
    client = open_client(uri)
    experiment = client.create_experiment("tests", artifact_location(uri))
    for name in ASKED:
        run_id = client.create_run(experiment).info.run_id
        register_model_folder(
            models[name],
            name=name,
            run_id=run_id,
            tracking_uri=uri,
            card="",
            tags={},
            metrics={},
            aliases=["champion"],
        )
    return uri


def expected(models, name):
    """What the offline predictor says to the same."""
    folder = models[name]
    if name == "vectors":
        vectors = load_extractor(folder, FeatureChoice()).of_texts(TEXTS)
        return [{"vector": each} for each in vectors.tolist()]
    predictor = load_predictor(folder)
    examples = {
        "answers": lambda: [
            Question("", question["question"], question["context"], None) for question in QUESTIONS
        ],
        "choices": lambda: [
            Choices(choice["context"], tuple(choice["choices"]), None) for choice in CHOICES
        ],
        "paraphrase": lambda: [Text(pair["text"], pair["text_pair"], None) for pair in PAIRS],
    }.get(name, lambda: [Text(text, None, None) for text in TEXTS])()
    found, rows = predictor.predict_examples(examples)
    if name == "answers":
        found = [
            {
                "answers": [each for each in one["n_best"][:1] if each["text"]]
                if one["text"]
                else [],
                "null_score": one["null_score"],
            }
            for one in found
        ]
    elif name != "choices":
        found = [classified(each) for each in found]
    read = zip(found, rows.num_tokens.tolist(), rows.truncated.tolist(), strict=True)
    return [{**each, "n_tokens": count, "truncated": cut} for each, count, cut in read]


def check(models, name, answers):
    assert len(answers) == len(ASKED[name])
    if name == "encoder":
        assert [len(answer) for answer in answers] == [5, 5]
        _, _, tokenizer = load_model_folder(models[name])
        for candidates in answers:
            probabilities = [candidate["probability"] for candidate in candidates]
            assert probabilities == sorted(probabilities, reverse=True) and probabilities[-1] > 0
            assert all(
                tokenizer.token_to_id(candidate["token"]) is not None for candidate in candidates
            )
    elif name == "entities":
        first = answers[0]["entities"][0]
        assert first["text"] == TEXTS[0][first["start"] : first["end"]]
        assert answers[2]["n_tokens"] > 32 and not answers[2]["truncated"], "read in windows"
    else:
        for found, wanted in zip(answers, expected(models, name), strict=True):
            assert found.keys() == wanted.keys()
            assert_alike(found, wanted)


def assert_alike(found, wanted):
    if isinstance(wanted, dict):
        for name, value in wanted.items():
            assert_alike(found[name], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    else:
        assert found == wanted


def environment(store):
    return os.environ | {
        "MLFLOW_TRACKING_URI": store,
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.slow
def test_mlflow_loads_a_version_that_does_its_task(models, store, tmp_path):
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps(ASKED))
    result = subprocess.run(
        [sys.executable, "-c", PREDICTING, str(asked)],
        cwd=tmp_path,
        env=environment(store),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr and "Warning" not in result.stderr, result.stderr
    *_, core, answers = result.stdout.splitlines()
    assert not core.startswith(str(REPOSITORY)), "it is the code registered with the model"
    found = json.loads(answers)
    for name, each in found.items():
        assert each["has_signature"]
        assert len(each["example"]) == 1
        check(models, name, each["answers"])


@pytest.mark.slow
def test_mlflow_serves_each_task(models, store, tmp_path):
    """`mlflow models serve`, several servers at once, for each takes ten seconds to start."""
    program = Path(sys.executable).with_name("mlflow")
    servers = {}
    try:
        for name in ASKED:
            with socket.create_server(("127.0.0.1", 0)) as taken:
                port = taken.getsockname()[1]
            command = [program, "models", "serve", "-m", f"models:/{name}/1", "-p", str(port)]
            servers[name] = (
                port,
                subprocess.Popen(
                    [*map(str, command), "--env-manager", "local", "--workers", "1"],
                    env=environment(store),
                    stdout=(tmp_path / f"{name}.log").open("w"),
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                ),
            )
        for name, (port, _) in servers.items():
            inputs = ASKED[name]
            bodies = [{"inputs": inputs}]
            if isinstance(inputs[0], dict):
                bodies.append({"dataframe_records": inputs})
            else:
                bodies.append(
                    {"dataframe_split": {"columns": ["text"], "data": [[each] for each in inputs]}}
                )
            for body in bodies:
                check(models, name, post(port, body, tmp_path / f"{name}.log"))
    finally:
        for _, server in servers.values():
            os.killpg(server.pid, 9)
            server.wait()


def post(port, body, log):
    request = Request(
        f"http://127.0.0.1:{port}/invocations",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    end = time.monotonic() + 240
    while True:
        try:
            with urlopen(request, timeout=60) as answer:
                return json.load(answer)["predictions"]
        except ConnectionError:
            pass
        except OSError as error:
            if not isinstance(getattr(error, "reason", None), ConnectionRefusedError):
                raise AssertionError(f"{error}: {log.read_text()[-3000:]}") from error
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.5)


def test_a_table_a_list_and_columns_are_the_same_rows():
    rows = [("who", "the cat"), ("what", "the mat")]
    table = pd.DataFrame(rows, columns=list(QUESTION))
    records = [dict(zip(QUESTION, row, strict=True)) for row in rows]
    columns = {"question": ["who", "what"], "context": np.array(["the cat", "the mat"])}
    for given in (table, table[["context", "question"]], records, columns):
        assert input_rows(given, QUESTION) == rows
    for given in ("a", ["a"], [["a"]], np.array(["a"]), {"text": ["a"]}, {"any": "a"}):
        assert input_rows(given, TEXT) == [("a",)]
    assert input_rows([], TEXT) == []
    assert input_rows(pd.Series(["a", "b"]), TEXT) == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("given", "columns", "match"),
    [
        (["a"], QUESTION, "a row needs question and context"),
        ([{"question": "a"}], QUESTION, "no column context: there are question"),
        ({"question": ["a"], "context": ["b", "c"]}, QUESTION, "different lengths"),
        ([1], TEXT, "text of row 0 is no text: '1'"),
        (["a", None], TEXT, "text of row 1"),
        (5, TEXT, "text of row 0 is no text: '5'"),
        (None, TEXT, "text of row 0"),
        ({"text": 5}, TEXT, "text of row 0"),
        (["a", "\ud800"], TEXT, "text of row 1"),
        ([{"context": "a", "choices": []}], ("context", "choices"), "no list of texts"),
        ([{"context": ["a"], "choices": ["b"]}], ("context", "choices"), "context of row 0"),
        ([{"context": "a", "choices": "b"}], ("context", "choices"), "no list of texts"),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), TEXT, "two columns text"),
        (pd.DataFrame([["a", "b"]], columns=["x", "x"]), TEXT, "two columns x"),
        (pd.DataFrame([["a", "b"]], columns=[1, "1"]), TEXT, "two columns 1"),
        (
            pd.DataFrame([["a", "b", "c"]], columns=["question", "context", "context"]),
            QUESTION,
            "two columns context",
        ),
    ],
)
def test_what_is_no_row_is_named(given, columns, match):
    with pytest.raises(ValueError, match=match):
        input_rows(given, columns)


@pytest.mark.parametrize(
    ("model", "columns", "outputs"),
    [
        ("encoder", None, None),
        ("sentiment", None, ["label", "scores"]),
        ("paraphrase", ["text", "text_pair"], ["label", "scores"]),
        ("topics", None, ["labels", "scores"]),
        ("grade", None, ["value"]),
        ("entities", None, ["entities"]),
        ("answers", ["question", "context"], ["answers", "null_score"]),
    ],
)
def test_a_signature_names_what_goes_in_and_what_comes_out(small_models, model, columns, outputs):
    signature, example = signature_and_example(small_models[model])
    named = signature.inputs.input_names() if signature.inputs.has_input_names() else None
    assert named == columns
    assert columns is None or list(example[0]) == columns
    found = signature.outputs and signature.outputs.input_names()
    assert found == (outputs and [*outputs, "n_tokens", "truncated"])
