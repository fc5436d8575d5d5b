"""How a station is printed; whole chains are in `test_registry_lineage.py`."""

from dataclasses import replace

import pytest

from workflows.finetune import parse
from workflows.pretraining.settings import PretrainSettings
from workflows.versions.lineage_text import chain_lines, other_than_default
from workflows.versions.registry_lineage import Encoder, Station

BARE = Station(
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


@pytest.fixture
def text():
    """The one paragraph of a station."""

    def printed(**changes):
        return "\n".join(chain_lines([replace(BARE, **changes)]))

    return printed


def test_what_is_not_recorded_is_said_or_left_out(text):
    assert text(end="neither is recorded") == (
        "models:/cats/2\n"
        "  run         not recorded\n"
        "  code        of no git checkout\n"
        "  settings    settings.yaml is not among the run's artifacts\n"
        "  ends here   neither is recorded"
    )
    assert "run cats-1a2b, of which no version" in text(version=None, run="cats-1a2b")


def test_a_run_that_is_gone_or_did_not_finish(text):
    gone = text(run="cats-1a2b", run_id="1" * 32)
    assert f"cats-1a2b, {'1' * 32}, which MLflow does not have any more" in gone
    there = {"run": "cats-1a2b", "run_id": "1" * 32, "experiment": "e", "begun": "2026 UTC"}
    assert "begun 2026 UTC, KILLED" in text(**there, status="KILLED")
    assert "FINISHED" not in text(**there, status="FINISHED")


def test_changes_in_no_commit_and_settings_changed_since_are_said(text):
    assert "commit aaaaaaaaaaaa," in text(git_commit="a" * 40, packages={"torch": "2"})
    assert "and changes that are in no commit" in text(git_commit="a" * 40, git_dirty=True)
    settings = {"settings": {}, "settings_sha256": "b" * 64}
    assert "sha256 bbbbbbbbbbbb" in text(**settings, settings_are_as_recorded=True)
    assert "changed since" in text(**settings, settings_are_as_recorded=False)
    assert "changed since" not in text(**settings, settings_are_as_recorded=True)


def test_an_encoder_without_a_version_is_told_by_name_and_run(text):
    encoder = Encoder("minilm", "c" * 64, None, None, "mini-1", None)
    assert "encoder     minilm, of the run mini-1, sha256 cccccccccccc" in text(encoder=encoder)


def test_of_the_settings_those_are_shown_that_are_no_defaults():
    changed = parse(["--data", "d", "--model", "m", "--seed", "4", "--register", "cats"])
    assert other_than_default(changed.portable()) == ["seed 4", "task classification"]
    assert other_than_default(PretrainSettings().portable()) == []
    gone = changed.portable() | {"task": "a task that is no more"}
    assert "seed 4" in other_than_default(gone)


def test_stations_stand_apart():
    lines = chain_lines([BARE, replace(BARE, version="models:/bert/1")])
    assert lines[lines.index("") + 1] == "models:/bert/1"
