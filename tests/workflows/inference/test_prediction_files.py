import json

import pyarrow.parquet as pq
import pytest

from workflows.inference.prediction_files import prediction_file, schema_of

READ = {"id": "a", "n_tokens": 3, "truncated": False}
SCORES = [{"label": "zwölf", "score": 0.5}]
ENTITY = {"type": "X", "text": "a", "start": 0, "end": 1, "score": 0.25}
ANSWER = {"text": "a", "start": 0, "end": 1, "score": 2.5, "probability": 1.0}
ROWS = {
    "label": READ | {"label": "zwölf", "scores": SCORES},
    "labels": READ | {"labels": [], "scores": SCORES},
    "value": READ | {"value": 0.1},
    "entities": READ | {"entities": [ENTITY | {"start_word": 0, "end_word": 1}]},
    "answers": READ | {"answers": [ANSWER], "null_score": -1.5},
}


@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_every_kind_come_back(tmp_path, kind):
    row = ROWS[kind]
    for output_format in ("jsonl", "parquet"):
        with prediction_file(tmp_path / f"a.{output_format}", output_format, kind) as write:
            write([row])
            write([row, row])
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").open()] == [row] * 3
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.to_pylist() == [row] * 3
    assert table.schema == schema_of(kind)
    assert "zwölf" in (tmp_path / "a.jsonl").read_text() or "label" not in kind


def test_entities_of_sub_words_have_no_words(tmp_path):
    with prediction_file(tmp_path / "a.parquet", "parquet", "entities") as write:
        write([READ | {"entities": [ENTITY]}, READ | {"entities": []}])
    first, second = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert first["entities"] == [ENTITY | {"start_word": None, "end_word": None}]
    assert second["entities"] == []


@pytest.mark.parametrize("output_format", ["jsonl", "parquet"])
def test_nothing_is_there_before_all_of_it(tmp_path, output_format):
    path = tmp_path / f"a.{output_format}"
    with pytest.raises(KeyError), prediction_file(path, output_format, "value") as write:
        write([ROWS["value"]])
        assert not path.exists()
        raise KeyError
    assert not any(tmp_path.iterdir())
    with prediction_file(path, output_format, "value"):
        pass
    assert [each.name for each in tmp_path.iterdir()] == [path.name], "a file without rows"
