"""The lineage of versions of real runs, back to the text, as data and as text."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from finetuning_runs import write_encoder, write_task
from pretraining_runs import Run, write_corpus
from recorded_runs import finish_finetuning, finish_pretraining, name_sources
from registered_models import copy_store

from bert_core.errors import UserError
from workflows.finetune import parse
from workflows.pretraining.settings import PretrainSettings
from workflows.registry import main
from workflows.runs.mlflow_run import open_client
from workflows.versions.lineage import (
    Encoder,
    LineageEntry,
    chain_lines,
    other_than_default,
    trace,
)
from workflows.versions.registration import CONTENT_TAG, content_hash, register_model_folder


@pytest.fixture(scope="module")
def storage(tmp_path_factory, store_template):
    """An encoder of a corpus, registered as bert, and a model of it, registered as cats."""
    storage = tmp_path_factory.mktemp("storage")
    copy_store(store_template, storage)
    run = Run(storage, "encoder-run", write_corpus(storage / "corpus"), 4)
    name_sources(run.shards)
    finish_pretraining(run)
    write_task(storage / "data")
    finish_finetuning(
        storage,
        *("--register", "cats"),
        encoder=run.folder / "model",
        model="models:/bert@latest-trained",
        name="cats-run",
        seed=3,
    )
    return storage


@pytest.fixture(scope="module")
def uri(storage):
    return f"sqlite:///{storage / 'mlflow' / 'mlflow.db'}"


@pytest.fixture(scope="module")
def entries(uri):
    return trace("cats@latest-trained", uri)


def tagged(uri, folder, name, **tags):
    """Registers a folder as the model of a run that has these tags."""
    client = open_client(uri)
    run = client.create_run("0", run_name=f"run of {name}")
    return register_model_folder(
        folder,
        name=name,
        run_id=run.info.run_id,
        tracking_uri=uri,
        card="",
        tags={each.replace("__", "."): value for each, value in tags.items()},
        metrics={},
    )


def test_every_version_carries_its_lineage(storage, uri, entries):
    client = open_client(uri)
    cats, bert = (dict(client.get_model_version(name, "1").tags) for name in ("cats", "bert"))
    for tags in (cats, bert):
        names = ("data", "tokenizer", "settings", "code")
        assert all(len(tags[f"{name}.sha256"]) == 64 for name in names), tags
        assert len(tags["mlflow.source.git.commit"]) == 40
        assert tags["git.dirty"] in ("true", "false")
    assert (cats["run"], bert["run"]) == ("cats-run", "encoder-run")
    assert cats["encoder.version"] == "models:/bert/1"
    assert cats["encoder.content_sha256"] == bert[CONTENT_TAG]
    assert cats["tokenizer.sha256"] == bert["tokenizer.sha256"]
    assert "encoder.version" not in bert


def test_the_chain_leads_from_the_version_to_the_text(storage, entries):
    cats, bert = entries
    assert (cats.version, cats.aliases, cats.run) == (
        "models:/cats/1",
        ["latest-trained"],
        "cats-run",
    )
    assert cats.status == "FINISHED" and cats.begun.endswith("UTC") and cats.end is None
    assert cats.settings["seed"] == 3 and cats.settings_are_as_recorded
    assert cats.data["splits"]["train"]["examples"] == 90
    assert cats.encoder.version == bert.version == "models:/bert/1"
    assert cats.encoder.content_sha256 == bert.content_sha256
    assert bert.content_sha256 == content_hash(storage / "runs" / "encoder-run" / "model")
    assert bert.settings["phases"] == [{"sequence_length": 32, "steps": 4}]
    assert bert.data["sha256"] and bert.data["tokenizer_sha256"] == bert.tokenizer_sha256
    assert bert.data["splits"]["train"]["documents"] == 280
    assert [each["text"] for each in bert.data["text"]] == ["docs://numpy", "…/*.txt"]
    assert (bert.encoder, bert.end) == (None, None), "the text itself"
    assert bert.metrics["heldout/masked_token_loss"] > 0


def test_the_command_prints_it_for_people_and_for_programs(storage, entries, capsys):
    for model in ("cats@latest-trained", "cats/1", "models:/cats/1"):
        assert main(["lineage", model, "--storage", str(storage)]) == 0
        printed = capsys.readouterr().out
        order = [
            "models:/cats/1  @latest-trained",
            "cats-run, ",
            "commit ",
            "settings ",
            "90 train",
        ]
        order += ["models:/bert/1", "encoder-run, ", "phases", "280 train", "409 entries"]
        order += ["docs://numpy: 200 documents, 0.1 MB", "numpy 2.4.6", "…/*.txt: 120 documents"]
        places = [printed.index(each) for each in order]
        assert places == sorted(places), printed
        assert max(map(len, printed.splitlines())) <= 100 and str(storage) not in printed
    assert main(["lineage", "cats/1", "--json", "--storage", str(storage)]) == 0
    printed = capsys.readouterr().out
    cats, bert = json.loads(printed)
    assert cats["run_id"] == entries[0].run_id and bert["data"] == entries[1].data
    assert str(storage) not in printed


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("cat/1", ("unknown model, did you mean cats", "cat")),
        ("cats@latest-traned", ("unknown alias of cats, did you mean latest-trained",)),
        ("cats/7", ("unknown version of cats", "7")),
        ("cats", ("not the version of a model: cats", "NAME@ALIAS")),
    ],
)
def test_a_name_that_is_not_there_is_refused_in_one_line(storage, capsys, model, words):
    assert main(["lineage", model, "--storage", str(storage)]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert not captured.out and all(word in line for word in words), line


def test_an_encoder_that_was_given_by_its_folder_is_found_by_its_content(storage, uri, tmp_path):
    folder = storage / "runs" / "encoder-run" / "model"
    number = tagged(uri, write_encoder(tmp_path / "a"), "dogs", encoder__sha256="12" * 32)
    (alone,) = trace(f"dogs/{number}", uri)
    assert "came from elsewhere" in alone.end
    content = content_hash(folder)
    number = tagged(uri, write_encoder(tmp_path / "b"), "mice", encoder__content_sha256=content)
    client = open_client(uri)
    assert client.get_model_version("mice", str(number)).tags["encoder.version"] == "models:/bert/1"
    assert [each.version for each in trace(f"mice/{number}", uri)][1] == "models:/bert/1"
    # Registered anew under the old number, it is another model.
    wrong = {"encoder__content_sha256": content, "encoder__version": "models:/cats/1"}
    number = tagged(uri, write_encoder(tmp_path / "c"), "owls", **wrong)
    assert trace(f"owls/{number}", uri)[1].version == "models:/bert/1"


def test_the_way_ends_where_nothing_more_is_known_and_says_so(storage, uri, tmp_path):
    unknown = {"encoder__content_sha256": "0" * 64, "encoder__name": "minilm"}
    number = tagged(uri, write_encoder(tmp_path / "a"), "elsewhere", **unknown)
    (station,) = trace(f"elsewhere/{number}", uri)
    assert station.end.startswith("the folder minilm does not say which run made it")
    gone = unknown | {"encoder__run": "mini", "encoder__run_id": "9" * 32}
    (station,) = trace(f"gone/{tagged(uri, write_encoder(tmp_path / 'b'), 'gone', **gone)}", uri)
    assert station.end == f"the encoder is of run mini, run id {'9' * 32}, which this MLflow " + (
        "does not have"
    )
    (station,) = trace(f"bare/{tagged(uri, write_encoder(tmp_path / 'c'), 'bare')}", uri)
    assert station.end == "neither an encoder nor token shards are recorded"


def test_a_run_without_a_version_leads_on_too(storage, uri, tmp_path):
    (bert,) = trace("bert/1", uri)
    tags = {"encoder__sha256": "12" * 32, "encoder__run_id": bert.run_id}
    number = tagged(uri, write_encoder(tmp_path / "a"), "young", **tags)
    young, found = trace(f"young/{number}", uri)
    assert young.end is None and found.version is None
    assert (found.run, found.data, found.end) == ("encoder-run", bert.data, None)


def test_a_deleted_run_leaves_what_its_version_says(storage, uri, tmp_path):
    number = tagged(uri, write_encoder(tmp_path / "a"), "orphan", run="mini", data__sha256="a" * 64)
    client = open_client(uri)
    client.delete_run(client.get_model_version("orphan", str(number)).run_id)
    (station,) = trace(f"orphan/{number}", uri)
    assert (station.run, station.begun, station.settings) == ("mini", None, None)
    assert station.run_id and station.data == {"sha256": "a" * 64}


def test_settings_that_were_changed_afterwards_are_noticed(uri, entries):
    client, name = open_client(uri), "settings.sha256"
    client.set_model_version_tag("bert", "1", name, "0" * 64)
    (bert,) = trace("bert/1", uri)
    client.set_model_version_tag("bert", "1", name, entries[1].settings_sha256)
    assert bert.settings_are_as_recorded is False


def test_no_store_is_said(tmp_path):
    with pytest.raises(UserError, match="no MLflow store at"):
        trace("cats/1", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert not list(Path(tmp_path).iterdir())


BARE = LineageEntry(
    version="models:/cats/2",
    aliases=[],
    registered=None,
    content_sha256=None,
    run=None,
    run_id=None,
    experiment=None,
    status=None,
    begun=None,
    git_commit=None,
    git_dirty=None,
    code_sha256=None,
    packages={},
    settings=None,
    settings_sha256=None,
    settings_are_as_recorded=None,
    data={},
    tokenizer_sha256=None,
    metrics={},
    encoder=None,
)


RUN = {"run": "cats-1a2b", "run_id": "1" * 32}
BEGUN = RUN | {"experiment": "e", "begun": "2026 UTC"}
SETTINGS = {"settings": {}, "settings_sha256": "b" * 64}
ENCODER = Encoder("minilm", "c" * 64, None, None, "mini-1", None)


@pytest.mark.parametrize(
    ("changes", "expected", "unexpected"),
    [
        ({"version": None, "run": "cats-1a2b"}, "run cats-1a2b, of which no version", None),
        (RUN, f"cats-1a2b, {'1' * 32}, which MLflow does not have any more", None),
        (BEGUN | {"status": "KILLED"}, "begun 2026 UTC, KILLED", None),
        (BEGUN | {"status": "FINISHED"}, "begun 2026 UTC", "FINISHED"),
        ({"git_commit": "a" * 40, "packages": {"torch": "2"}}, "commit aaaaaaaaaaaa,", None),
        ({"git_commit": "a" * 40, "git_dirty": True}, "changes that are in no commit", None),
        (SETTINGS | {"settings_are_as_recorded": True}, "sha256 bbbbbbbbbbbb", "changed since"),
        (SETTINGS | {"settings_are_as_recorded": False}, "changed since", None),
        ({"encoder": ENCODER}, "minilm, of the run mini-1, sha256 cccccccccccc", None),
    ],
)
def test_the_paragraph_of_an_entry(changes, expected, unexpected):
    text = "\n".join(chain_lines([replace(BARE, **changes)]))
    assert expected in text and (unexpected is None or unexpected not in text)
    labels = [line.split()[0] for line in chain_lines([replace(BARE, end="here")])]
    assert labels == ["models:/cats/2", "run", "code", "settings", "ends"]


@pytest.mark.slow
def test_of_the_settings_those_are_shown_that_are_no_defaults():
    changed = parse(["--data", "d", "--model", "m", "--seed", "4", "--register", "cats"])
    assert other_than_default(changed.portable()) == ["seed 4", "task classification"]
    assert other_than_default(PretrainSettings().portable()) == []
    gone = changed.portable() | {"task": "a task that is no more"}
    assert "seed 4" in other_than_default(gone)
