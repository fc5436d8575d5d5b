"""The input of extraction and prediction: found, tried, and added up in the end."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_core.text.sources import CorpusError
from bert_core.text.texts import read_records
from workflows.inference.extraction import ExtractSettings
from workflows.inference.predict_settings import PredictSettings
from workflows.inference.text_parts import (
    OF_ONE_START,
    TextInput,
    TextPartsSettings,
    find_input,
    gathered,
    left_out,
    no_texts,
    num_tokens,
    refuse_many_skipped,
    worker_device,
)
from workflows.output_folder import WorkKeptError


@pytest.mark.parametrize("settings_class", [ExtractSettings, PredictSettings])
def test_what_may_change_between_starts_are_settings_of_both(settings_class):
    shared = TextPartsSettings.model_fields.keys()
    assert {*OF_ONE_START} < shared < settings_class.model_fields.keys()
    changes = {"input", "text_column", "id_column", "precision", "part_bytes"}
    assert shared - {*OF_ONE_START} == changes, "what results depend on"


def settings(*inputs, **changed):
    return TextPartsSettings(model="m", input=[*map(str, inputs)], output="out", **changed)


def test_the_first_part_is_tried_and_others_are_not(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "ba"}\n' * 5)
    (tmp_path / "b.jsonl").write_text('{"body": "ba"}\n' * 5)
    (tmp_path / "c.png").write_bytes(b"")
    columns = {"text_column": "text"}
    given = find_input(settings(tmp_path, part_bytes=30), columns)
    assert len(given.found) == 2 and len(given.parts) == 6
    assert given.skipped == {"files_of_unknown_format": 1}
    with pytest.raises(CorpusError, match="no column 'text'.*b.jsonl"):
        find_input(settings(tmp_path / "b.jsonl", tmp_path / "a.jsonl"), columns)


def test_a_file_that_is_damaged_may_be_left_out(tmp_path):
    torn = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["ba"]}), torn)
    torn.write_bytes(torn.read_bytes()[:-9])
    (tmp_path / "b.txt").write_text("ba")
    inputs = torn, tmp_path / "b.txt"
    with pytest.raises(CorpusError, match=r"damaged .*a\.parquet .*, or --skip_bad to go on"):
        find_input(settings(*inputs), {"text_column": "text"})
    given = find_input(settings(*inputs, skip_bad=True), {"text_column": "text"})
    assert len(given.parts) == 1 and len(given.unreadable) == 1
    with pytest.raises(CorpusError, match="no file of texts"):
        find_input(settings("docs://json"), {"text_column": "text"})
    with pytest.raises(CorpusError, match="lines of text have no column of ids"):
        find_input(settings(inputs[1], id_column="id"), {"text_column": "text"})
    (tmp_path / "c.jsonl").write_text('{"text": "ba", "id": 1}\n')
    mixed = find_input(
        settings(*inputs[1:], tmp_path / "c.jsonl", id_column="id"), {"text_column": "text"}
    )
    assert len(mixed.parts) == 2


def test_what_parts_came_to_is_added_up():
    records = [
        {"name": "part-00000", "counts": {"texts": 2, "tokens": 9}, "dropped": {"empty_lines": 1}},
        {"error": ["damaged", "b.txt", "mend it"], "left_out": True},
        {"name": "part-00002", "counts": {"texts": 1, "tokens": 4}, "dropped": {}},
    ]
    skipped = Counter(files_of_unknown_format=1)
    index = gathered(records, TextInput([], [], skipped, []))
    assert index["counts"] == {"texts": 3, "tokens": 13}
    assert [each["name"] for each in index["parts"]] == ["part-00000", "part-00002"]
    assert num_tokens(records) == 13
    said = ["dropped: 1 empty lines, 1 files of unknown format"]
    assert left_out(index) == [*said, "left out: damaged: b.txt (mend it)"]
    assert left_out({"dropped": {}, "bad_files": []}) == ["dropped: nothing"]
    error = str(no_texts(settings("b.txt"), index))
    assert "no texts (1 empty lines; 1 files of unknown format; left out: damaged" in error


@pytest.mark.parametrize(("torn", "is_refused"), [(0, False), (2, False), (3, True), (250, True)])
def test_more_than_a_hundredth_of_a_file_is_refused_until_it_is_asked_for(
    tmp_path, torn, is_refused
):
    lines = ['{"text": "ba"}'] * (250 - torn) + ['{"text": 1}'] * torn
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.jsonl").write_text('{"text": "ba"}\n\n\n' * 1000)
    given = find_input(settings(tmp_path, part_bytes=1000), {"text_column": "text"})
    records = []
    for part in given.parts:
        dropped = Counter()
        texts = sum(1 for _ in read_records(part, dropped, {"text_column": "text"}))
        records.append({"name": part.name, "counts": {"texts": texts}, "dropped": dict(dropped)})
    assert sum(record["counts"]["texts"] for record in records) == 1250 - torn
    refuse_many_skipped(settings("a", skip_bad=True), records, given)
    if not is_refused:
        refuse_many_skipped(settings("a"), records, given)
        return
    match = rf"{torn} of 250 records are no texts: .*a.jsonl .*--skip_bad"
    with pytest.raises(WorkKeptError, match=match):
        refuse_many_skipped(settings("a"), records, given)


def test_outside_of_ray_the_cpu_works():
    assert worker_device().type == "cpu"
