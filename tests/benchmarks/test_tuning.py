import pytest

from benchmarks.tuning import TINY_EXAMPLES, main, write_head


def test_the_tiny_sweep_has_the_first_examples(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    lines = ["Quality\ttext\n", *(f"1\tline {number}\n" for number in range(200))]
    for name in ("train.tsv", "dev.tsv"):
        (data / name).write_text("\ufeff" + "".join(lines), encoding="utf-8")
    head = write_head(data, tmp_path / "head", TINY_EXAMPLES)
    assert (head / "train.tsv").read_text() == "".join(lines[: TINY_EXAMPLES + 1])
    assert (head / "dev.tsv").read_text() == (head / "train.tsv").read_text()


@pytest.mark.ray
def test_bad_input_is_one_line(tmp_path, capsys, ray_cluster):
    assert main(["--data", str(tmp_path / "none"), "--model", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[-1].startswith("error: ") and "none" in errors[-1]
