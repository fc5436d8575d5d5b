"""Tagging: predictions by word, windows and documents, and parity with transformers."""

import json

import numpy as np
import pytest
import torch

from bert_core.config import IGNORE_INDEX
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tokenizer_training import train_wordpiece

WORDS = ["the", "cats", "sat", "on", "Anna's", "mat", "dogs", "run", "slowly", "away-from", "Bob"]
LABELS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece([" ".join(WORDS[:7])] * 3, 60, lowercase=True)


def some_sentences(lengths, **fields):
    choose = np.random.default_rng(6)
    return [
        TaggedSentence(
            choose.choice(WORDS, size=n).tolist(), choose.choice(LABELS, size=n).tolist(), **fields
        )
        for n in lengths
    ]


def blind(bert):
    """Lets the model see nothing but the token it stands on."""
    embeddings = bert.encoder.embeddings
    for table in (embeddings.position, embeddings.segment):
        torch.nn.init.zeros_(table.weight)
    for layer in bert.encoder.layers:
        torch.nn.init.zeros_(layer.attention_output.weight)
    return bert


@pytest.mark.parametrize("document_context", [False, True])
@pytest.mark.parametrize("max_length", [8, 20, 64])
def test_each_word_has_its_own_prediction_across_windows(
    model, tokenizer, document_context, max_length
):
    # Single-word entities alone, so that no tag depends on the one before.
    task = Tagging(
        labels=("B-A", "B-B", "B-C", "B-D", "O"),
        max_length=max_length,
        document_context=document_context,
    )
    bert = blind(model(task, torch.float32))
    sentences = [
        TaggedSentence([*each.words, "\x01"], None, document="d")
        for each in some_sentences([40, 3, 1, 90, 7])
    ]
    rows = task.encode(sentences, tokenizer)
    assert rows.tally == {"examples truncated": 0, "words without tokens": 5, "invalid tags": 0}
    outputs, _ = compute_all_outputs(task, bert, rows, device=CPU, max_tokens=100)
    predictions = task.decode(outputs, rows, sentences)
    alone = [TaggedSentence([word]) for word in WORDS]
    alone_rows = task.encode(alone, tokenizer)
    alone_outputs, _ = compute_all_outputs(task, bert, alone_rows, device=CPU)
    expected = dict(zip(WORDS, task.decode(alone_outputs, alone_rows, alone), strict=True))
    assert len({each["tags"][0] for each in expected.values()}) > 2, "the test can fail"
    for prediction, sentence in zip(predictions, sentences, strict=True):
        tags = [expected[word]["tags"][0] for word in sentence.words[:-1]]
        assert prediction["tags"] == [*tags, "O"]
        entities = iter(prediction["entities"])
        for number, word in enumerate(sentence.words[:-1]):
            for entity in expected[word]["entities"]:
                assert next(entities) == {
                    "type": entity["type"],
                    "start": number,
                    "end": number + 1,
                    "score": pytest.approx(entity["score"], rel=1e-4),
                }
        assert next(entities, None) is None


def outputs_for(task, rows, tags, confidence):
    """Outputs that give these tags, of all words, their probabilities."""
    share = np.asarray(confidence)[rows.notes["words"]]
    outputs = np.log(np.repeat((1 - share)[:, None] / (len(task.labels) - 1), len(task.labels), 1))
    codes = np.array([task.labels.index(tag) for tag in tags])[rows.notes["words"]]
    outputs[np.arange(len(codes)), codes] = np.log(share)
    return outputs.astype(np.float32)


def test_entities_scores_and_tags_in_the_scheme_of_the_data(tokenizer):
    task = Tagging(labels=LABELS)
    tags = ["I-PER", "I-PER", "B-PER", "O", "B-LOC", "O", "I-LOC", "I-LOC"]
    confidence = [0.8, 0.6, 0.9, 0.99, 0.7, 0.5, 0.9, 0.7]
    entities = [
        [("PER", 0, 2, 0.7), ("PER", 2, 3, 0.9)],
        [("LOC", 0, 1, 0.7), ("LOC", 2, 3, 0.9)],
        [("LOC", 0, 1, 0.7)],
    ]
    written = {
        "iob1": ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "O", "I-LOC", "I-LOC"],
        "iob2": ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "O", "B-LOC", "B-LOC"],
        "bioes": ["B-PER", "E-PER", "S-PER", "O", "S-LOC", "O", "S-LOC", "S-LOC"],
    }
    for scheme, expected in written.items():
        sentences = [
            TaggedSentence(words, None, scheme=scheme)
            for words in (["cats"] * 4, ["the", "mat", "on"], ["run"])
        ]
        rows = task.encode(sentences, tokenizer)
        predictions = task.decode(outputs_for(task, rows, tags, confidence), rows, sentences)
        assert json.loads(json.dumps(predictions)) == predictions
        assert [each["tags"] for each in predictions] == [expected[:4], expected[4:7], expected[7:]]
        for prediction, some in zip(predictions, entities, strict=True):
            assert prediction["entities"] == [
                {"type": kind, "start": start, "end": end, "score": pytest.approx(score, rel=1e-5)}
                for kind, start, end, score in some
            ]


def test_metrics_of_predictions_in_any_scheme(tokenizer):
    task = Tagging(labels=LABELS)
    gold = ["B-PER", "I-PER", "O", "B-LOC"]
    found = ["B-PER", "I-PER", "B-LOC", "I-LOC"]
    # In IOB1 the last word is I-LOC in both: conlleval compares tags as they are written.
    for scheme, accuracy in (("iob1", 0.75), ("iob2", 0.5), ("bioes", 0.5)):
        sentences = [TaggedSentence(["cats", "on", "mat", "run"], gold, scheme=scheme)]
        rows = task.encode(sentences, tokenizer)
        right = task.decode(outputs_for(task, rows, gold, [0.9] * 4), rows, sentences)
        assert set(task.metrics(right, sentences).values()) == {1}
        some = task.decode(outputs_for(task, rows, found, [0.9] * 4), rows, sentences)
        metrics = task.metrics(some, sentences)
        assert metrics[task.criterion] == 0.5
        assert (metrics["f1_PER"], metrics["f1_LOC"], metrics["accuracy"]) == (1, 0, accuracy)


def test_only_first_subwords_have_labels(tokenizer):
    task = Tagging(labels=LABELS)
    sentences = some_sentences([12, 5])
    rows = task.encode(sentences, tokenizer)
    assert rows.lengths.sum() > 17 + 4, "some words are several tokens"
    assert len(rows.labels) == len(rows.places) == rows.label_counts.sum() == 17
    assert [task.labels[n] for n in rows.labels] == [
        tag for sentence in sentences for tag in sentence.tags
    ]
    assert rows.label_counts.tolist() == [12, 5] and rows.num_items == 2
    unknown = [TaggedSentence(sentence.words) for sentence in sentences]
    assert (task.encode(unknown, tokenizer).labels == IGNORE_INDEX).all()


def test_a_document_is_as_few_rows_as_fit(tokenizer):
    sentences = [
        *some_sentences([8, 4, 6], document="first"),
        *some_sentences([7, 2], document="second"),
        *some_sentences([5]),
        *some_sentences([5]),
    ]
    alone = Tagging(labels=LABELS, max_length=512).encode(sentences, tokenizer)
    assert alone.num_items == 7 and alone.example.tolist() == list(range(7))
    task = Tagging(labels=LABELS, max_length=512, document_context=True)
    rows = task.encode(sentences, tokenizer)
    assert rows.num_items == 4 and rows.example.tolist() == [0, 3, 5, 6]
    assert rows.label_counts.tolist() == [18, 9, 5, 5]
    assert rows.lengths.sum() == alone.lengths.sum() - 3 * 2
    assert rows.labels.tolist() == alone.labels.tolist()


def test_labels_are_closed_over_types():
    sentences = [TaggedSentence(["a", "b"], ["B-PER", "O"]), TaggedSentence(["c"])]
    assert Tagging().with_labels(sentences).labels == ("B-PER", "I-PER", "O")
    some = [TaggedSentence(["a"], [tag]) for tag in LABELS]
    assert Tagging().with_labels(some).labels == LABELS
    assert Tagging(labels=("O", "B-X")).with_labels(some).labels == ("O", "B-X")


def test_examples_of_a_folder_and_what_is_refused(tmp_path, tokenizer):
    (tmp_path / "train.txt").write_text("a I-PER\nb I-PER\nc B-PER\n\nd O\n")
    (tmp_path / "valid.conll").write_text("a\tO\nb\tI-PER\n\nd\tI-LOC\n")
    (tmp_path / "test.jsonl").write_text('{"words": ["a", "b"], "tags": ["I-PER", "O"]}\n')
    task = Tagging()
    train, dev, test = (task.examples(tmp_path, split) for split in ("train", "dev", "test"))
    assert train[0].tags == ["B-PER", "I-PER", "B-PER"] and train[0].scheme == "iob1"
    assert test[0].tags == ["B-PER", "O"]
    task = task.with_labels(train)
    with pytest.raises(TaskDataError, match="unknown label 'B-LOC': .*valid.conll:4 .*I-PER, O"):
        task.encode(dev, tokenizer)
    counting = Tagging(scheme="iob2").examples(tmp_path, "train")
    assert [each.num_invalid for each in counting] == [1, 0]
    assert task.encode(counting, tokenizer).tally["invalid tags"] == 1
    with pytest.raises(TaskDataError, match="I-PER is not allowed here in IOB2: .*train.txt:1"):
        Tagging(scheme="iob2", invalid_tags="refuse").examples(tmp_path, "train")
    with pytest.raises(TaskDataError, match="no document boundaries in the data: .*train.txt"):
        Tagging(document_context=True).examples(tmp_path, "train")
    with pytest.raises(TaskDataError, match="no column ner: .*train.txt:1"):
        Tagging(tag_column="ner").examples(tmp_path, "train")


def test_nothing_has_no_rows_and_no_predictions(model, tokenizer):
    task = Tagging(labels=LABELS)
    bert = model(task, torch.float32)
    for sentences, expected in (
        ([], []),
        ([TaggedSentence(["\x01", "\x02"], ["O", "B-PER"])], [{"tags": ["O"] * 2, "entities": []}]),
    ):
        rows = task.encode(sentences, tokenizer)
        outputs, loss = compute_all_outputs(task, bert, rows, device=CPU)
        assert (rows.num_items, loss) == (0, 0)
        assert task.decode(outputs, rows, sentences) == expected


def test_conll_2003_by_name(shared_data):
    task = TASKS["conll2003"]
    dev = task.examples(shared_data / "ner" / "conll2003", "dev")
    assert dev[0].words[:3] == ["CRICKET", "-", "LEICESTERSHIRE"] and dev[0].tags[2] == "B-ORG"
    labels = task.with_labels(dev).labels
    types = ("LOC", "MISC", "ORG", "PER")
    assert labels == (*(f"B-{kind}" for kind in types), *(f"I-{kind}" for kind in types), "O")


def test_the_files_of_2003_as_they_were_published(tmp_path):
    (tmp_path / "eng.train").write_text(
        "-DOCSTART- -X- O O\n\nU.N. NNP I-NP I-ORG\nsays VBZ I-VP O\n\nEU NNP I-NP I-ORG\n"
    )
    (tmp_path / "eng.testa").write_text("Bonn NNP I-NP I-LOC\n")
    (tmp_path / "eng.testb").write_text("Rome NNP I-NP I-LOC\nBonn NNP I-NP B-LOC\n")
    task = TASKS["conll2003"]
    assert [example.tags for example in task.examples(tmp_path, "train")] == [
        ["B-ORG", "O"],
        ["B-ORG"],
    ]
    for split, words in (("dev", ["Bonn"]), ("test", ["Rome", "Bonn"])):
        (sentence,) = task.examples(tmp_path, split)
        assert (sentence.words, sentence.scheme) == (words, "iob1")


def test_conll_2003_comes_from_the_hub(hub_copy):
    from datasets import ClassLabel, List, Value

    features = {
        "id": Value("string"),
        "tokens": List(Value("string")),
        "pos_tags": List(ClassLabel(names=["NN", "VBZ"])),
        "ner_tags": List(ClassLabel(names=["O", "B-PER", "I-PER"])),
    }
    columns = {"id": ["0"], "tokens": [["Bob", "runs"]], "pos_tags": [[0, 1]]}
    typed = hub_copy(features, train={**columns, "ner_tags": [[1, 0]]})
    (sentence,) = TASKS["conll2003"].examples(typed, "train")
    assert (sentence.words, sentence.tags, sentence.scheme) == (
        ["Bob", "runs"],
        ["B-PER", "O"],
        "iob2",
    )
    task = TASKS["conll2003"].model_copy(update={"tag_column": "pos"})
    assert task.with_labels(task.examples(typed, "train")).labels == ("NN", "VBZ")


def test_plain_tags_are_labels_judged_by_accuracy(tmp_path, model, tokenizer):
    (tmp_path / "train.txt").write_text("the DT\ncats NNS\nrun VBP\n\nO O\nsat VBD\n")
    (tmp_path / "dev.txt").write_text("dogs NNS\n\x01 DT\n")
    (tmp_path / "test.txt").write_text("cats XX\n")
    task = Tagging().with_labels(Tagging().examples(tmp_path, "train"))
    assert task.labels == ("DT", "NNS", "O", "VBD", "VBP")
    assert (task.criterion, Tagging().criterion) == ("accuracy", "f1")
    dev = task.examples(tmp_path, "dev")
    unknown = [TaggedSentence(each.words) for each in dev]
    for sentences in (dev, unknown):
        rows = task.encode(sentences, tokenizer)
        predictions = task.decode(
            outputs_for(task, rows, ["NNS", "DT"], [0.9, 0.9]), rows, sentences
        )
        assert predictions[0]["tags"] == ["NNS", "O"], "of \x01 the tokenizer makes nothing"
        assert predictions[0]["entities"] == [
            {"type": "NNS", "start": 0, "end": 1, "score": pytest.approx(0.9, rel=1e-5)}
        ]
    assert task.metrics(predictions, dev) == {"accuracy": 0.5}
    with pytest.raises(TaskDataError, match="unknown label 'XX': .*test.txt:1 .*DT, NNS"):
        task.encode(task.examples(tmp_path, "test"), tokenizer)


def test_types_and_tags_that_are_odd_are_told():
    assert Tagging(labels=("B-PER", "I-PER", "O")).label_warnings() == []
    assert Tagging(labels=("NN", "NNS", "0", "E-X", "PRP_B")).label_warnings() == []
    (alike,) = Tagging(labels=("B-PER", "I-PER", "B-per", "I-per", "O")).label_warnings()
    assert "'PER', 'per'" in alike
    for labels in (("o", "PER"), ("B_PER", "I_PER", "MISC")):
        (plain,) = Tagging(labels=labels).label_warnings()
        assert "plain" in plain and repr(labels[0]) in plain
        assert Tagging(labels=labels, scheme="none").label_warnings() == []


def test_what_was_written_otherwise_is_told(tmp_path, tokenizer):
    (tmp_path / "train.txt").write_text("cats b-PER\nrun o\n\ndogs B-PER\n")
    task = Tagging().with_labels(Tagging().examples(tmp_path, "train"))
    assert task.labels == ("B-PER", "I-PER", "O")
    rows = task.encode(task.examples(tmp_path, "train"), tokenizer)
    assert rows.tally["tags read as B-, I- or O"] == 2


def test_tags_of_entities_may_be_taken_as_they_are(tmp_path, tokenizer):
    (tmp_path / "train.txt").write_text("the I-PER\ncats B-PER\n")
    task = Tagging(scheme="none")
    task = task.with_labels(task.examples(tmp_path, "train"))
    assert (task.labels, task.criterion) == (("B-PER", "I-PER"), "accuracy")
    sentences = task.examples(tmp_path, "train")
    rows = task.encode(sentences, tokenizer)
    found = ["I-PER", "I-PER"]
    predictions = task.decode(outputs_for(task, rows, found, [0.9, 0.9]), rows, sentences)
    assert predictions[0]["tags"] == found
    assert task.metrics(predictions, sentences) == {"accuracy": 0.5}


def test_numbers_where_names_or_words_are_meant_are_told(tmp_path):
    (told,) = Tagging(labels=("0", "3", "12")).label_warnings()
    assert "--options.tag_names" in told
    path = tmp_path / "train.tsv"
    path.write_text("1\tAda\tB-PER\tO\n\n1\tLondon\tB-LOC\tO\n")
    with pytest.raises(TaskDataError, match=r"column 0 is a number.*--options.word_column 1"):
        Tagging().examples(path, "train")
    found = Tagging(word_column="1", tag_column="2").examples(path, "train")
    assert [each.tags for each in found] == [["B-PER"], ["B-LOC"]]
