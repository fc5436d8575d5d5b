"""The labels that are flipped, and how they are counted."""

import json

import pytest

from benchmarks.label_errors import measured, write_flipped, write_read


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "MRPC"
    folder.mkdir()
    rows = [f'{number % 2}\t1\t2\ta "quote {number}\tb' for number in range(100)]
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("\ufeffQuality\tx\ty\tz\tw\n" + "\n".join(rows) + "\n")
    return folder


def test_a_share_of_the_labels_is_flipped_by_the_seed(data, tmp_path):
    flipped = write_flipped(data, tmp_path / "a", 0.05, 0)
    before = (data / "train.tsv").read_text(encoding="utf-8-sig").splitlines()
    after = (tmp_path / "a" / "train.tsv").read_text().splitlines()
    changed = [n for n, pair in enumerate(zip(before, after, strict=True), 1) if len({*pair}) > 1]
    assert flipped == changed and len(flipped) == 5
    for line in flipped:
        old, new = before[line - 1], after[line - 1]
        assert old[1:] == new[1:] and {old[0], new[0]} == {"0", "1"}
    assert (tmp_path / "a" / "dev.tsv").read_bytes() == (data / "dev.tsv").read_bytes()
    assert write_flipped(data, tmp_path / "b", 0.05, 0) == flipped
    assert write_flipped(data, tmp_path / "c", 0.05, 1) != flipped


def test_flips_are_counted_in_the_ranking(tmp_path):
    rows = [{"where": f"train.tsv:{n + 2}", "suspect": n < 4} for n in range(40)]
    (tmp_path / "ranking.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = {"estimated_noise": 0.1, "out_of_fold": {}, "retrained": None}
    (tmp_path / "report.json").write_text(json.dumps(report))
    found = measured(tmp_path, [2, 3, 7, 30])
    assert found["found_in_the_first"] == {"5%": 0.5, "10%": 0.5, "20%": 0.75}
    assert (found["suspects"], found["precision"], found["recall"]) == (4, 0.5, 0.5)
    assert write_read(tmp_path, [2, 3, 7, 30], tmp_path / "read.jsonl") == 2
    read = [json.loads(line) for line in (tmp_path / "read.jsonl").read_text().splitlines()]
    assert read == rows[:2]
