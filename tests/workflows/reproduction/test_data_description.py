import pytest
from finetuning_runs import write_encoder, write_task
from pretraining_runs import write_corpus
from recorded_runs import name_sources

from bert_core.text.shards import read_index
from bert_core.tokenizer import tokenizer_hash
from workflows.finetune import parse
from workflows.finetuning.data import open_encoder, read_task_data
from workflows.reproduction.data_description import data_name, describe_shards, describe_task_data


def test_shards_are_told_with_their_text_and_without_a_path_of_this_machine(tmp_path):
    folder = write_corpus(tmp_path / "corpus", num_documents=40)
    name_sources(folder)
    described = describe_shards(folder)
    index = read_index(folder)
    assert described["sha256"] == index.data_hash
    assert described["tokenizer_sha256"] == index.tokenizer_sha256
    assert described["vocabulary"] == index.vocab_size
    assert described["splits"]["heldout"]["documents"] == 5
    assert described["splits"]["train"]["documents"] == 35
    assert described["splits"]["train"]["shards"] == 2
    train = index.splits["train"]
    assert described["splits"]["train"]["tokens"] == sum(each.num_tokens for each in train)
    assert [each["text"] for each in described["text"]] == ["docs://numpy", "…/*.txt"]
    assert described["text"][0]["version"] == "numpy 2.4.6"
    assert described["prepared_with"] == {"text": ["docs://numpy", "…/*.txt"], "language": "en"}


def test_examples_are_told_with_labels_and_counts(tmp_path):
    data, encoder = write_task(tmp_path / "cats"), write_encoder(tmp_path / "encoder")
    settings = parse(["--data", str(data), "--model", str(encoder), "--options.max_length", "32"])
    tokenizer = open_encoder(str(encoder), tmp_path, "sqlite://").tokenizer
    read = read_task_data(settings, tokenizer)
    described = describe_task_data("classification", str(data), read, tokenizer)
    assert described["source"] == "cats" and described["labels"] == ["down", "up"]
    assert described["tokenizer_sha256"] == tokenizer_hash(tokenizer)
    splits = described["splits"]
    assert (splits["train"]["examples"], splits["dev"]["examples"]) == (90, 40)
    assert splits["train"]["rows"] == 90
    assert splits["train"]["tokens"] == int(read.train.rows.lengths.sum())


@pytest.mark.parametrize(
    ("given", "name"),
    [("/data/glue/MRPC", "MRPC"), ("docs://numpy", "docs://numpy"), ("hf://a/b:c", "hf://a/b:c")],
)
def test_what_data_are_called(given, name):
    assert data_name(given) == name
