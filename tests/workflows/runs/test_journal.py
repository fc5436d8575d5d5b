import resource

import pytest

from bert_core.errors import UserError
from workflows.runs.journal import Journal, JournalReader, last_step, read_records


def entries(path):
    return [(record.step, record.metrics) for record in read_records(path)]


def test_a_torn_last_line_is_dropped_and_the_next_record_is_whole(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(1, {"loss": 2.0})
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"step":2,"time":1.0,"metr')
    assert entries(path) == [(1, {"loss": 2.0})]
    Journal(path).append(2, {"loss": 1.5})
    assert entries(path) == [(1, {"loss": 2.0}), (2, {"loss": 1.5})]


def test_the_last_step_is_that_of_the_last_whole_record(tmp_path):
    path = tmp_path / "journal.jsonl"
    assert last_step(path) == 0
    journal = Journal(path)
    assert last_step(path) == 0
    for step in range(1, 2001):  # more than the end that is read
        journal.append(step, {"train/loss": 1.0, "train/gradient_norm": 0.25})
    journal.close()
    assert last_step(path) == 2000
    with path.open("ab") as file:
        file.write(b'{"step": 2001}\n{"step":2002,"time":1.0,"metr')
    assert last_step(path) == 2000


def test_a_step_has_each_name_once(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(5, {"train/loss": 1.0})
    journal.append(5, {"heldout/loss": 1.0})
    for step in (4, 5):
        with pytest.raises(ValueError, match="behind step 5"):
            journal.append(step, {"train/loss": 1.0})
    with pytest.raises(ValueError, match="no name"):
        journal.append(6, {"loss%": 1.0})
    assert len(entries(journal.path)) == 2


def test_values_come_back_bit_for_bit(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    values = {"a": 0.1 + 0.2, "b": float("inf"), "c": 1e-310, "d": -0.0}
    journal.append(1, values)
    assert repr(entries(journal.path)[0][1]) == repr(values)
    journal.append(2, {"a": float("nan")})
    assert str(entries(journal.path)[1][1]["a"]) == "nan"


def test_a_step_computed_again_keeps_its_first_time(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    for step in range(1, 6):
        journal.append(step, {"loss": float(step)})
    before = list(journal.records())
    journal.cut_back(2)
    assert [record.step for record in journal.records()] == [1, 2]
    journal = Journal(journal.path)  # a process of its own, as after a kill
    for step in range(3, 5):
        journal.append(step, {"loss": float(step)})
    journal.cut_back(3)  # and once more
    for step in range(4, 6):
        journal.append(step, {"loss": float(step)})
    assert list(journal.records()) == before


def test_the_checkpoints_copy_takes_the_place_of_a_lost_journal(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    for step in range(1, 6):
        journal.append(step, {"loss": float(step)})
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(journal.path.read_bytes())
    elsewhere = Journal(tmp_path / "elsewhere" / "journal.jsonl")
    elsewhere.cut_back(4, copy)
    assert [record.step for record in elsewhere.records()] == [1, 2, 3, 4]
    elsewhere.append(5, {"loss": 5.0})
    with pytest.raises(ValueError, match="behind"):
        elsewhere.append(5, {"loss": 5.0})


def test_a_full_disk_is_an_error_that_leaves_whole_lines(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(1, {"loss": 1.0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 10, limits[1]))
    try:
        for _ in range(2):
            with pytest.raises(UserError, match="cannot write the journal"):
                journal.append(2, {"loss": 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.append(2, {"loss": 2.0})
    assert journal.path.read_bytes().count(b"\n") == 2
    assert entries(journal.path) == [(1, {"loss": 1.0}), (2, {"loss": 2.0})]


def test_a_reader_follows_and_begins_again_when_the_journal_is_cut_back(tmp_path):
    path = tmp_path / "journal.jsonl"
    reader = JournalReader(path)
    assert reader.peek(10) == []
    journal = Journal(path)
    for step in range(1, 5):
        journal.append(step, {"loss": 1.0, "rate": 2.0})
    assert [record.step for record in reader.peek(4)] == [1, 2]
    assert [record.step for record in reader.peek(4)] == [1, 2]
    reader.advance()
    assert [record.step for record in reader.peek(100)] == [3, 4]
    reader.advance()
    assert reader.peek(4) == []
    journal.cut_back(3)
    assert [record.step for record in reader.peek(100)] == [1, 2, 3]


def test_lines_that_are_no_records_are_passed_over(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(1, {"a": 1.0})
    journal.close()
    with journal.path.open("ab") as file:
        for line in (b"[" * 100_000, b'{"step": "2", "time": 1, "metrics": {}}', b"\xff", b"{}"):
            file.write(line + b"\n")
        file.write(b'{"step": 3, "time": 1, "metrics": []}\n')
    again = Journal(journal.path)
    again.append(2, {"a": 2.0})
    found = [(record.step, record.metrics) for record in again.records()]
    assert found == [(1, {"a": 1.0}), (2, {"a": 2.0})]
