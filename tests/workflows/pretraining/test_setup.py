import pytest
from pretraining_runs import write_corpus

from bert_core.errors import UserError
from bert_core.text.rows.settings import RowSettings
from bert_core.text.shards import open_shards
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.setup import announce, packing_note, refuse_unfit_shards
from workflows.run_folder import RunFolder
from workflows.settings import parse_command_line


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus", num_documents=40)


def parse(*arguments):
    return parse_command_line(PretrainSettings, arguments)


def test_shards_that_cannot_train_are_refused(tmp_path, corpus):
    shards = open_shards(corpus)
    refuse_unfit_shards(shards, RowSettings())
    one = open_shards(write_corpus(tmp_path / "one", num_documents=5))
    with pytest.raises(UserError, match="1 documents in the heldout split, 2 are needed.*mlm"):
        refuse_unfit_shards(one, RowSettings())
    refuse_unfit_shards(one, RowSettings(objective="mlm", input_format="full_sentences"))
    tokenizer = corpus / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"lowercase": true', '"lowercase": false'))
    with pytest.raises(UserError, match="the tokenizer is not the one"):
        refuse_unfit_shards(shards, RowSettings())


def test_more_workers_than_bins_are_told():
    assert not packing_note(parse("--preset", "base"))
    assert not packing_note(parse("--preset", "base-fast", "--cluster.num_workers", "[1,16]"))
    (line,) = packing_note(parse("--preset", "base-fast", "--cluster.num_workers", "[1,17]"))
    assert "at most 16 bins" in line and "from 256" in line


def test_what_is_about_to_happen_is_said(tmp_path, corpus, capsys):
    announce(parse("--preset", "base"), RunFolder(tmp_path / "a"), open_shards(corpus))
    printed = capsys.readouterr().out
    assert "900,000 at 128, 100,000 at 512, 256 rows each, padded\n" in printed
    assert "run      a" in printed and str(tmp_path) in printed and "35 documents" in printed
    assert "rows " not in printed.replace("rows each", "")
    other = parse("--rows.objective", "left_to_right", "--model.hidden_size", "192")
    announce(other, RunFolder(tmp_path / "a"), open_shards(corpus))
    printed = capsys.readouterr().out
    assert "rows     left_to_right\n" in printed and "tiny with hidden_size 192" in printed


@pytest.mark.parametrize(("profile", "layout"), [("gpu", "packed"), ("tpu-v6e-16", "padded")])
def test_whether_rows_are_packed_is_said(tmp_path, corpus, capsys, profile, layout):
    settings = parse("--preset", "base-fast", "--profile", profile)
    announce(settings, RunFolder(tmp_path / "a"), open_shards(corpus))
    assert f", 4,096 rows each, {layout}\n" in capsys.readouterr().out
