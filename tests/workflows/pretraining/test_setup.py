from collections import Counter

import numpy as np
import pytest
from pretraining_runs import write_corpus

from bert_core.errors import UserError
from bert_core.settings import RowSettings
from bert_core.special_tokens import num_embeddings
from bert_core.text.encoding import SentenceEncoder
from bert_core.text.pieces import encode_piece, join_pieces, scan_parts, take_inventory
from bert_core.text.shards import TOKEN_COUNTS_NAME, ShardIndex, open_shards, write_index
from bert_core.text.sources import find_parts
from bert_core.tokenizer import save_tokenizer, tokenizer_hash
from bert_core.tokenizer_training import train_wordpiece
from workflows.pretrain import (
    announce,
    given_shards,
    label_note,
    opened_pretraining,
    packing_note,
    refuse_unfit_shards,
    workers_note,
)
from workflows.pretrain import parse as parse_new_run
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.folder import RunFolder
from workflows.runs.storage import open_storage
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


def test_text_beside_shards_is_refused_instead_of_left_out(tmp_path, corpus):
    shards = ["--shards", str(corpus)]
    for option in (("--text", "docs://numpy"), ("--text_column", "body")):
        with pytest.raises(UserError, match=rf"{option[0]} \(leave it out, or --shards\)"):
            parse_new_run([*shards, *option])
    extended = ["--preset", "adapt", "--start_from", "m", "--vocabulary", "extend"]
    with pytest.raises(UserError, match=r"--new_pieces \(leave it out, or --shards\)"):
        parse_new_run([*shards, *extended, "--new_pieces", "500"])


def test_the_settings_of_a_run_of_text_are_read_beside_its_shards(tmp_path, corpus):
    written = tmp_path / "settings.yaml"
    written.write_text("text: [papers.txt]\nvocabulary_size: 900\n", encoding="utf-8")
    again = parse_new_run(["--preset", str(written), "--shards", str(corpus)])
    assert given_shards(again, tmp_path) == corpus


def test_text_is_read_from_its_column(tmp_path):
    text, lines = tmp_path / "text.jsonl", [f"a line of number {number}" for number in range(200)]
    text.write_text("".join(f'{{"body": "{line}"}}\n' for line in lines), encoding="utf-8")
    options = ["--text", str(text), "--vocabulary_size", "150", "--heldout_share", "0.1"]
    with pytest.raises(UserError, match=r"no column 'text'.*give --text_column, for example body"):
        given_shards(parse_new_run(options), tmp_path)
    settings = parse_new_run([*options, "--text_column", "body"])
    shards = open_shards(given_shards(settings, tmp_path), "train")
    assert int(np.load(shards.folder / TOKEN_COUNTS_NAME, allow_pickle=False).sum()) > 1000
    assert settings.recipe() == parse_new_run(options).recipe()


def test_more_workers_than_bins_are_told():
    assert not packing_note(parse("--preset", "base"))
    assert not packing_note(parse("--preset", "base-fast", "--cluster.num_workers", "[1,16]"))
    (line,) = packing_note(parse("--preset", "base-fast", "--cluster.num_workers", "[1,17]"))
    assert "at most 16 bins" in line and "below 256" in line


def test_there_are_no_more_workers_than_rows_in_any_phase(tmp_path, corpus):
    last = '{"sequence_length": 32, "steps": 99, "global_batch_size": 4}'
    phases = f'[{{"sequence_length": 32, "steps": 99}}, {last}]'
    options = ("--cluster.num_workers", "[1,8]", "--phases", phases, "--storage", str(tmp_path))
    settings, storage = parse(*options), open_storage(str(tmp_path))
    with opened_pretraining(settings, storage, open_shards(corpus)) as job:
        assert job.settings.cluster.num_workers == (1, 4)
    (line,) = workers_note(settings)
    assert "at most 4" in line
    assert not workers_note(job.settings)


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


def written_shards(folder, documents, heldout_share=0.01):
    """Shards of the documents, as `prepare` would make them, without Ray."""
    folder.mkdir()
    text = folder / "text.txt"
    text.write_text("\n\n".join(documents))
    parts = list(find_parts([str(text)], "text", Counter()))
    scanned = scan_parts(folder, "000000", parts, text_column="text", strict=False)
    corpus = take_inventory(folder, [scanned], heldout_share, 10**9)
    tokenizer = train_wordpiece(documents, 300, lowercase=True)
    encoder = SentenceEncoder(tokenizer, "uint16")
    piece, choice = corpus.pieces[0], corpus.choices[0]
    encoded = encode_piece(folder, piece, choice, encoder, "en")
    splits = {
        split: [join_pieces(folder, folder, f"{split}-0", [entry], 300)[0]]
        for split, entry in encoded.splits.items()
    }
    save_tokenizer(tokenizer, folder / "tokenizer.json")
    write_index(
        folder,
        ShardIndex(
            dtype="uint16",
            vocab_size=num_embeddings(tokenizer),
            tokenizer_sha256=tokenizer_hash(tokenizer),
            splits={"train": [], "heldout": []} | splits,
        ),
    )
    return open_shards(folder)


WHOLE_ROWS = RowSettings(objective="mlm", input_format="full_sentences")
DOCUMENTS = [f"This is document {n}.\nIt has a second line.\nAnd a third." for n in range(4)]


def test_the_remedies_for_few_documents_work(tmp_path):
    """Each names what to do; done, the next check passes."""

    def refused(documents, **settings):
        folder = tmp_path / f"{len(documents)}-{len(list(tmp_path.iterdir()))}"
        shards = written_shards(folder, documents, **settings)
        with pytest.raises(UserError) as error:
            refuse_unfit_shards(shards, RowSettings())
        return shards, error.value.remedy

    _, remedy = refused(DOCUMENTS[:1])
    assert "more documents" in remedy and "--rows" not in remedy  # there, nothing is held out
    for few in (2, 3):
        shards, remedy = refused(DOCUMENTS[:few])
        assert "four documents" in remedy and "full_sentences" in remedy
        refuse_unfit_shards(shards, WHOLE_ROWS)
    refuse_unfit_shards(written_shards(tmp_path / "four", DOCUMENTS), RowSettings())
    _, remedy = refused(DOCUMENTS, heldout_share=0)
    assert "--heldout_share above 0" in remedy
    least = written_shards(tmp_path / "least", DOCUMENTS, heldout_share=1e-9)
    refuse_unfit_shards(least, RowSettings())


def test_labels_that_are_nearly_all_alike_are_warned_about(tmp_path):
    single = [f"Sentence {n} stands alone here." for n in range(60)]
    shards = written_shards(tmp_path / "single", single)
    (line,) = label_note(parse("--preset", "base"), shards)
    assert "only 0% of the next-sentence labels" in line and "--rows.objective mlm" in line
    assert not label_note(parse("--preset", "base", "--rows.objective", "mlm"), shards)
    longer = ["\n".join(single[n : n + 12]) for n in range(0, 60, 6)]
    assert not label_note(parse("--preset", "base"), written_shards(tmp_path / "longer", longer))
