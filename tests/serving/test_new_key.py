"""`python -m serving.new_key`: a key on standard output, its hash in the file."""

import pytest

from serving.keys import read_keys
from serving.new_key import main


def test_a_key_is_made(tmp_path, capsys):
    path = tmp_path / "keys.json"
    asked = ["ann", "--file", str(path), "--scope", "predict", "--scope", "admin"]
    assert main([*asked, "--tokens_per_minute", "600"]) == 0
    key = capsys.readouterr().out.strip()
    record = read_keys(path).find(key).record
    assert (record.name, record.scopes, record.tokens_per_minute) == (
        "ann", ("predict", "admin"), 600,
    )  # fmt: skip


@pytest.mark.parametrize("more", [[], ["--tokens_per_minute", "0"]])
def test_what_is_wrong_is_one_line(tmp_path, capsys, more):
    path = tmp_path / "keys.json"
    if not more:
        path.write_text("[]")
    assert main(["ann", "--file", str(path), *more]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert not captured.out
