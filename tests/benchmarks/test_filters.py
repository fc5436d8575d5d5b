"""What the filters of prepared text cost."""

import json

import pytest

from benchmarks import filters


@pytest.fixture
def corpus(tmp_path):
    """Some documents, two of them nearly the same, one with an address of mail."""
    words = [f"{word}{number}" for number in range(30) for word in ("sea", "town", "hill")]
    documents = [" ".join(words[shift:] + words[:shift]) + "." for shift in range(40)]
    documents += ["Write to ann@example.org in the town by the sea, on the hill of the hills."]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    (tmp_path / "dev.tsv").write_text(
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\ta\tb\t" + documents[0] + "\tb\n"
    )
    return tmp_path


def test_every_filter_is_measured(corpus, capsys, monkeypatch):
    pytest.importorskip("rensa")
    pytest.importorskip("py3langid")
    monkeypatch.setattr(filters, "_VOCABULARY", 200)
    path = corpus / "filters.json"
    words = ["--text", corpus / "text.txt", "--excluded", f"mrpc={corpus}", "--repeats", "1"]
    assert filters.main([str(word) for word in [*words, "--json", path]]) == 0
    arms = json.loads(path.read_text())["arms"]
    assert arms[filters.BARE]["of_bare"] == 1 and arms[filters.SCRUB]["dropped"] == 1
    assert len(arms) == 6 and all(arm["of_bare"] <= 1.5 for arm in arms.values())
    assert arms["--near_duplicates 0.8"]["dropped"] > 10
    assert arms["--exclude mrpc"]["dropped"] > 10
    assert capsys.readouterr().out.count(" of the rate") == 6
