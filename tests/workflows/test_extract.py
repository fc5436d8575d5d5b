"""The extraction command: refused in one line; on Ray, whole or in parts, each row once."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from finetuning_runs import WORDS, write_encoder

from bert_core.features.extractor import FeatureChoice, load_extractor
from workflows import extract

COMMAND = Path(extract.__file__)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder") / "encoder"
    write_encoder(folder)
    return folder


@pytest.fixture
def run(encoder, tmp_path, capsys):
    """Calls the command in this process: exit code, output, errors."""

    def call(*inputs, output="out", **options):
        given = ["--model", str(encoder), "--output", str(tmp_path / output)]
        given += ["--storage", str(tmp_path / "storage"), "--input", *map(str, inputs)]
        for name, value in options.items():
            given += [f"--{name}", *([] if value is None else [str(value)])]
        code = extract.main(given)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def write_lines(path, count=50):
    texts = [" ".join(WORDS[i % 7 : i % 7 + 1 + i % 4]) for i in range(count)]
    path.write_text("".join(f"{text}\n" for text in texts))
    return texts


def read_table(folder):
    """All rows, as anybody would read them: in their order."""
    return pq.read_table(folder / "features").to_pydict()


def lose_the_end(path):
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"strategy": "concat_last_for"},
            "unknown strategy, did you mean concat_last_four: concat_last_for",
        ),
        ({"strategy": "concat_last_four"}, "concat_last_four needs 4 layers: the model has 1"),
        ({"layers": "0,2"}, "--layers 0,2 needs 2 layers: the model has 1"),
        ({"layers": "0", "strategy": "last"}, "a strategy and layers: --layers"),
        ({"unit": "token", "pooling": "mean"}, "a token is not pooled by mean"),
        ({"layer_weights": "0.5"}, "last has no weights of layers"),
        ({"max_length": 64}, "rows of 64 tokens: max_length .*32 positions"),
        ({"model": "nobody"}, "no such model: nobody"),
        ({"text_column": "body"}, "no column 'body': .*a.jsonl .give --text_column"),
        ({"id_column": "name"}, "no column 'name': .*a.jsonl .give --id_column"),
        ({"pool": "mean"}, r"unknown setting, did you mean pooling"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run, tmp_path, options, match):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "ba keli"}\n')
    code, _, error = run(path, **options)
    assert code == 2
    assert len(error.splitlines()) == 1
    assert re.search(match, error), error
    assert not (tmp_path / "out").exists()


def test_files_that_are_wrong_are_named(run, tmp_path):
    (tmp_path / "a.txt").write_text("ba")
    torn = tmp_path / "torn.parquet"
    pq.write_table(pa.table({"text": ["ba"]}), torn)
    lose_the_end(torn)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    for inputs, output, match in (
        ([torn], "out", "damaged parquet file: .*torn.parquet"),
        ([tmp_path / "none.txt"], "out", "no such file or folder: .*none.txt"),
        (["docs://numpy"], "out", "no file of texts: docs://numpy"),
        ([tmp_path / "a.txt"], "full", "the output folder holds other files: .*full"),
    ):
        code, _, error = run(*inputs, output=output)
        assert code == 2
        assert re.search(match, error), error


@pytest.mark.ray
def test_texts_become_features_once(run, tmp_path, encoder, ray_cluster):
    """Lines, records and rows, in many parts; then found finished, and another job refused."""
    lines = write_lines(tmp_path / "a.txt")
    records = [{"id": i, "text": f"rume ba {'to ' * i}"} for i in range(20)]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    rows = [f"noka {'shito ' * (2 * i)}" for i in range(30)]
    pq.write_table(
        pa.table({"text": rows, "id": [f"r{i}" for i in range(30)]}), tmp_path / "c.parquet"
    )
    inputs = [tmp_path / name for name in ("a.txt", "b.jsonl", "c.parquet")]
    code, printed, error = run(*inputs, part_bytes=200, id_column="id")
    assert code == 0, error
    table = read_table(tmp_path / "out")
    texts = [*lines, *(record["text"] for record in records), *rows]
    assert table["id"][:2] == ["a.txt:0", f"a.txt:{len(lines[0]) + 1}"]
    assert table["id"][50:] == [*map(str, range(20)), *(f"r{i}" for i in range(30))]
    expected = load_extractor(encoder, FeatureChoice()).of_texts(texts)
    np.testing.assert_allclose(np.array(table["features"]), expected, atol=1e-5)
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index["counts"]["texts"] == index["counts"]["units"] == 100
    assert index["counts"]["rows"] > 100, "some are longer than a row"
    assert len(index["parts"]) > 10
    assert "100 texts of" in printed
    assert "dropped: nothing" in printed
    names = sorted(each.name for each in (tmp_path / "out").iterdir())
    assert names == ["features", "index.json", "plan.json"]
    code, printed, _ = run(*inputs, part_bytes=200, id_column="id", num_workers=2)
    assert code == 0
    assert printed.startswith("complete already")
    assert "100 texts of" in printed
    code, _, error = run(*inputs, part_bytes=200, id_column="id", unit="word")
    assert code == 2
    assert "unit: text -> word" in error


@pytest.mark.ray
def test_what_would_come_to_nothing_or_wait_for_ever_is_refused(run, tmp_path, ray_cluster):
    write_lines(tmp_path / "a.txt")
    (tmp_path / "empty.txt").write_text("\n\n")
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "numbers.parquet")
    (tmp_path / "torn.txt.gz").write_bytes(gzip.compress(b"ba keli\n" * 9000)[:-20])
    for name, options, match in (
        ("a.txt", {"use_gpu": None}, r"no GPU in the cluster: --use_gpu .leave it out"),
        ("a.txt", {"threads_per_worker": 3}, r"2 CPUs in the cluster: --threads_per_worker 3 "),
        ("empty.txt", {}, r"no texts .2 empty lines.: --input .*empty.txt"),
        ("torn.txt.gz", {"skip_bad": None}, r"no texts .left out: cannot read .*torn.txt.gz"),
        ("torn.txt.gz", {}, r"cannot read to the end .*--skip_bad to go on without it\)$"),
        ("numbers.parquet", {}, r"column 'text' is int64, neither .*numbers.parquet"),
    ):
        code, _, error = run(tmp_path / name, **options)
        assert code == 2
        assert re.search(match, error), error
        assert not (tmp_path / "out").exists()


@pytest.mark.ray
def test_ended_between_the_last_two_steps(run, tmp_path, ray_cluster, monkeypatch):
    lines = write_lines(tmp_path / "a.txt")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("workflows.inference.text_parts.write_bytes", full)
        code, _, error = run(tmp_path / "a.txt")
        assert code == 2 and "Traceback" not in error
    assert (tmp_path / "out" / "features").is_dir()
    assert not (tmp_path / "out" / "index.json").exists()
    code, printed, error = run(tmp_path / "a.txt", strategy="last")  # which is the default
    assert code == 0, error
    assert re.search(r"resuming: (\d+) of \1 parts are done", printed)
    assert f"{len(lines)} texts of" in printed
    assert len(read_table(tmp_path / "out")["id"]) == len(lines)


@pytest.mark.ray
def test_what_cannot_be_read_is_named_and_left_out_on_request(run, tmp_path, ray_cluster):
    write_lines(tmp_path / "a.txt")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"ba keli\n" * 9000)[:-20])
    torn = tmp_path / "c.parquet"
    pq.write_table(pa.table({"text": ["ba"]}), torn)
    lose_the_end(torn)
    code, _, error = run(tmp_path / "a.txt", tmp_path / "b.txt.gz", layers="0,1", format="npy")
    assert code == 2
    assert re.search(r"cannot read to the end \(.*\): .*b\.txt\.gz .*--skip_bad", error), error
    inputs = [tmp_path / "a.txt", tmp_path / "b.txt.gz"]
    code, printed, error = run(*inputs, layers="0,1", format="npy", skip_bad=None)
    assert code == 0, error
    assert re.search(r"left out: cannot read to the end \(.*\): .*b\.txt\.gz", printed)
    assert re.search(r"features: .*/features\.npy and .*/features\.parquet", printed)
    array = np.load(tmp_path / "out" / "features.npy", mmap_mode="r", allow_pickle=False)
    assert array.shape == (50, 64)
    assert array.dtype == np.float16
    assert pq.read_table(tmp_path / "out" / "features.parquet").num_rows == 50
    code, printed, error = run(tmp_path / "a.txt", torn, output="other", skip_bad=None)
    assert code == 0, error
    assert re.search(r"left out: damaged parquet file: .*c\.parquet", printed)
