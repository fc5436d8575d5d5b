"""The champion of a registered model: aliases, tags, history, and moves that race."""

import getpass
import platform
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from interrupted_promotion import Child, hold_lock
from registered_models import DATA_SHA256, NAME, copy_store, store_of_models, store_of_names

from bert_core.errors import UserError
from workflows.promotion.champion import (
    CHAMPION,
    HISTORY_TAG,
    Entry,
    ModelRegistry,
    Times,
    history_table,
    move_champion,
    next_key,
    open_registry,
    promotion_lock,
    read_entries,
    user_and_host,
    utc_now,
    version_before,
)
from workflows.runs.mlflow_run import open_client


@pytest.fixture(scope="module")
def named_store(tmp_path_factory):
    """The path of a store whose versions are names alone, to be copied."""
    return store_of_names(tmp_path_factory.mktemp("names")).removeprefix("sqlite:///")


@pytest.fixture(scope="module")
def uri(named_store, tmp_path_factory):
    return copy_store(named_store, tmp_path_factory.mktemp("copy"))


@pytest.fixture
def registry(uri):
    with open_registry(NAME, uri) as opened:
        yield opened


def test_the_alias_is_moved_and_read(registry, uri):
    assert registry.state().champion is None
    for number in (2, 1):
        registry.set_champion(number)
        assert registry.state().champion == number
        assert open_client(uri).get_model_version_by_alias(NAME, CHAMPION).version == number
    with pytest.raises(UserError, match="version=9"):
        registry.set_champion(9)
    assert registry.state().champion == 1


def test_tags_of_a_version_are_replaced_by_their_prefix(registry, uri):
    registry.replace_version_tags(1, "gate.", {"gate.a": "1", "gate.b": "2"})
    open_client(uri).set_model_version_tag(NAME, "1", "other", "stays")
    registry.replace_version_tags(1, "gate.", {"gate.b": "3"})
    assert open_client(uri).get_model_version(NAME, "1").tags == {"gate.b": "3", "other": "stays"}


def test_versions_go_by_number_and_by_alias(registry, uri):
    open_client(uri).set_registered_model_alias(NAME, "challenger", "3")
    assert registry.version("2").number == 2
    assert registry.version("challenger").number == 3
    assert sorted(registry.versions()) == [1, 2, 3]
    with pytest.raises(UserError, match=r"unknown version of sentiment: 4 \(there are 1, 2, 3\)"):
        registry.version("4")
    with pytest.raises(UserError, match="alias of sentiment, did you mean challenger: challanger"):
        registry.version("challanger")


def test_a_version_says_what_was_recorded_of_it(tmp_path):
    with open_registry(NAME, copy_store(store_of_models(), tmp_path)) as registry:
        version = registry.version("3")
    assert version.metrics == {"accuracy": 0.1}
    assert version.data_sha256 == DATA_SHA256 and version.run_id is not None


def test_an_unknown_model_or_server_is_an_error_of_one_line(uri):
    with (
        pytest.raises(UserError, match="unknown model, did you mean sentiment: sentimant"),
        open_registry("sentimant", uri),
    ):
        pass
    with pytest.raises(UserError) as caught, open_registry(NAME, "http://127.0.0.1:9"):
        pass
    assert "\n" not in str(caught.value)


def entry(before, after, action="promote", state="done", **changes):
    given = {"who": "ada@box", "when": "2026-11-23 09:31:05", "why": "", "gate": ""} | changes
    return Entry(action=action, state=state, before=before, after=after, **given)


def back(before, after):
    return entry(before, after, "rollback")


def test_an_entry_is_written_and_read_in_order():
    tags = {"other": "tag", f"{HISTORY_TAG}x": "{}", f"{HISTORY_TAG}000009": "not JSON"}
    first, second = entry(None, 1, why="ü"), entry(1, 2, state="refused", gate="failed 1 of 2: f1")
    for number, each in ((10, first), (11, second)):
        key = next_key(tags)
        assert re.fullmatch(rf"{HISTORY_TAG}{number:06d}-[0-9a-f]{{8}}", key)
        tags[key] = each.model_dump_json()
    assert list(read_entries(tags).values()) == [first, second]
    assert next_key({}).startswith(f"{HISTORY_TAG}000001-") and next_key({}) != next_key({})


def test_an_entry_fits_into_a_tag_of_any_mlflow():
    longest = entry(123456, 123457, why="w" * 1000, gate="g" * 2500, who="u" * 64 + "@" + "h" * 255)
    assert len(longest.model_dump_json()) < 5000


def test_the_alias_tells_what_became_of_a_promotion_that_was_killed():
    moving = entry(1, 2, state="moving")
    assert moving.settled(2).state == "done"
    assert moving.settled(1).state == moving.settled(None).state == "interrupted"
    assert entry(1, 2, state="refused").settled(2).state == "refused"


@pytest.mark.parametrize(
    ("entries", "champion", "expected"),
    [
        ([], None, None),
        ([], 1, None),
        ([entry(None, 1)], 1, None),
        ([entry(None, 1), entry(1, 2)], 2, 1),
        ([entry(3, 4)], 4, 3),
        ([entry(None, 1), entry(1, 2), entry(2, 3)], 3, 2),
        ([entry(None, 1), entry(1, 2), entry(2, 3), back(3, 2)], 2, 1),
        ([entry(None, 1), entry(1, 2), entry(2, 3), back(3, 2), back(2, 1)], 1, None),
        ([entry(None, 1), entry(1, 2), back(2, 1), entry(1, 3)], 3, 1),
        ([entry(None, 1), entry(1, 2), entry(2, 1)], 1, 2),
        ([entry(None, 1), entry(1, 2, state="refused"), entry(1, 3)], 3, 1),
        ([entry(None, 1), entry(1, 2, state="interrupted")], 1, None),
        ([entry(None, 1), entry(1, 2)], 4, 2),  # 4 was set by hand
        ([entry(None, 1), entry(1, 2)], None, 2),  # the alias was removed by hand
        ([entry(None, 1), entry(5, 2)], 2, 5),  # 5 was set by hand, and noticed
        ([entry(None, 1), entry(1, 7), entry(7, 2)], 2, 1),  # 7 was deleted
    ],
)
def test_the_version_before(entries, champion, expected):
    assert version_before(entries, champion, {1, 2, 3, 4, 5}) == expected


def test_who_and_when(monkeypatch):
    assert user_and_host() == f"{getpass.getuser()}@{platform.node()}"
    assert len(utc_now()) == len("2026-11-23 09:31:05")
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54_321)
    assert user_and_host() == f"unknown@{platform.node()}", "a user of a container"


def test_the_table_says_what_happened():
    entries = [
        entry(None, 1, why="first"),
        entry(1, 2, state="refused", gate="failed 9 of 9: " + "a metric, " * 20),
        entry(1, 2, state="interrupted"),
        back(2, 1),
    ]
    titles, *lines = history_table(entries)
    what = titles.index("what")
    expected = ["promoted", "promote: refused", "promote: interrupted", "rolled back"]
    assert [line[what] for line in lines] == expected
    assert lines[0][titles.index("from")] == "none" and lines[0][-1] == "first"
    assert len(lines[1][titles.index("gate")]) <= 60


QUICK = Times(announce=0.7, abandoned=1.0, poll=0.05)
RACE = Times(announce=0.7, abandoned=30.0, poll=0.05)
ELSEWHERE = "http://mlflow.example.org"


@pytest.fixture
def fresh_uri(named_store, tmp_path):
    return copy_store(named_store, tmp_path)


def at_server(uri):
    """The model as of a store without a file: moves are decided by their announcements alone."""
    return ModelRegistry(open_client(uri), NAME, ELSEWHERE)


def moves(registry):
    return [(each.before, each.after, each.state) for each in entries_of(registry)]


def entries_of(registry):
    return list(read_entries(registry.state().tags).values())


def moving(before, after):
    return entry(before, after, state="moving")


def test_a_move_is_announced_and_done(fresh_uri):
    registry = at_server(fresh_uri)
    move_champion(registry, moving(None, 1), is_locked=False, times=QUICK)
    assert registry.state().champion == 1 and moves(registry) == [(None, 1, "done")]
    with pytest.raises(UserError, match="moved by another program: from none to version 1"):
        move_champion(registry, moving(None, 2), is_locked=False, times=QUICK)
    assert registry.state().champion == 1 and moves(registry) == [(None, 1, "done")]


def test_of_many_at_once_one_moves_the_alias_and_the_others_are_refused(fresh_uri):
    def attempt(before, after):
        try:
            move_champion(at_server(fresh_uri), moving(before, after), is_locked=False, times=RACE)
        except UserError as error:
            assert re.search("under way|by another program|too slow", str(error)), error
            return None
        return after

    champion, winners = None, []
    for _ in range(3):
        others = [number for number in (1, 2, 3) if number != champion]
        with ThreadPoolExecutor(4) as pool:
            won = list(filter(None, pool.map(attempt, [champion] * 4, [*others, *others][:4])))
        assert len(won) == 1
        winners.append((champion, won[0], "done"))
        champion = won[0]
        assert at_server(fresh_uri).state().champion == champion
    assert moves(at_server(fresh_uri)) == winners


def test_an_earlier_announcement_wins(fresh_uri, monkeypatch):
    registry = at_server(fresh_uri)
    rival = ModelRegistry(open_client(fresh_uri), NAME, ELSEWHERE)
    write = registry.set_tag

    def set_tag(key, value):
        """The other process has read the same history and writes just before this one."""
        rival.set_tag(f"{HISTORY_TAG}000001-0", moving(None, 2).model_dump_json())
        write(key, value)

    monkeypatch.setattr(registry, "set_tag", set_tag)
    with pytest.raises(UserError, match="another promotion of sentiment is under way: by ada@box"):
        move_champion(registry, moving(None, 1), is_locked=False, times=QUICK)
    assert registry.state().champion is None
    assert moves(registry) == [(None, 2, "moving")]  # its own announcement is withdrawn


def test_a_later_announcement_does_not_stop_an_earlier_one(fresh_uri, monkeypatch):
    registry = at_server(fresh_uri)
    write = registry.set_tag

    def set_tag(key, value):
        write(key, value)
        write(f"{HISTORY_TAG}000002-0", moving(None, 2).model_dump_json())
        monkeypatch.setattr(registry, "set_tag", write)

    monkeypatch.setattr(registry, "set_tag", set_tag)
    move_champion(registry, moving(None, 1), is_locked=False, times=QUICK)
    assert registry.state().champion == 1


@pytest.mark.parametrize(
    "times",
    [Times(announce=0.0), Times(announce=0.4, decide=0.2)],
    ids=["announced too late", "decided too late"],
)
def test_a_process_that_was_asleep_does_not_move(fresh_uri, times):
    registry = at_server(fresh_uri)
    with pytest.raises(UserError, match="MLflow is too slow to move the champion of sentiment"):
        move_champion(registry, moving(None, 1), is_locked=False, times=times)
    assert registry.state().champion is None and not moves(registry)


def test_an_announcement_that_others_have_closed_is_given_up(fresh_uri, monkeypatch):
    registry = at_server(fresh_uri)
    write = registry.set_tag

    def set_tag(key, value):
        write(key, value)
        write(key, Entry.model_validate_json(value).settled(None).model_dump_json())

    monkeypatch.setattr(registry, "set_tag", set_tag)
    with pytest.raises(UserError, match="another promotion of sentiment is under way"):
        move_champion(registry, moving(None, 1), is_locked=False, times=QUICK)
    assert registry.state().champion is None


@pytest.mark.parametrize(("after", "closed"), [(2, "done"), (3, "interrupted")])
def test_the_entry_of_a_killed_process_is_waited_for_and_closed(fresh_uri, capsys, after, closed):
    registry = at_server(fresh_uri)
    registry.set_champion(2)
    registry.set_tag(next_key({}), moving(1, after).model_dump_json())
    began = time.monotonic()
    move_champion(registry, moving(2, 1), is_locked=False, times=QUICK)
    assert time.monotonic() - began >= QUICK.abandoned
    assert "for a promotion by ada@box" in capsys.readouterr().out
    assert moves(registry) == [(1, after, closed), (2, 1, "done")]


def test_an_entry_that_ends_meanwhile_is_not_waited_for_any_longer(fresh_uri):
    registry = at_server(fresh_uri)
    key = next_key({})
    registry.set_tag(key, moving(None, 2).model_dump_json())
    finished = entry(None, 2, state="interrupted").model_dump_json()
    threading.Timer(0.3, at_server(fresh_uri).set_tag, (key, finished)).start()
    began = time.monotonic()
    move_champion(registry, moving(None, 1), is_locked=False, times=Times(announce=0.3, poll=0.05))
    assert time.monotonic() - began < 60
    assert moves(registry) == [(None, 2, "interrupted"), (None, 1, "done")]


def test_next_to_sqlite_a_file_is_locked_until_its_process_ends(uri):
    process = Child(hold_lock, NAME, uri)
    assert process.pipe.recv() is True
    with open_registry(NAME, uri) as registry:
        with (
            pytest.raises(UserError, match="another promotion of sentiment is under way"),
            promotion_lock(registry),
        ):
            pass
        process.kill()
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt), promotion_lock(registry):
                raise KeyboardInterrupt


def test_a_store_whose_folder_cannot_be_written(uri, tmp_path):
    (tmp_path / "file").touch()
    registry = ModelRegistry(open_client(uri), NAME, f"sqlite:///{tmp_path}/file/mlflow.db")
    with pytest.raises(UserError, match="cannot lock the store"), promotion_lock(registry):
        pass
