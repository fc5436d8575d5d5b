"""Folders of `transformers`: what task they are taken for, and that predictions are theirs."""

import json

import numpy as np
import pytest
import torch
import transformers
from parity import their_outputs
from transformers import BertConfig, PreTrainedTokenizerFast

from bert_core.errors import UserError
from bert_core.model_folder import ModelFolderError
from bert_core.predictor import load_predictor
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.classification import Text
from bert_core.tasks.multiple_choice import Choices
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.squad import Question
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.tagged_sentences import TaggedSentence

CLASSIFIER, TAGGER, READER, CHOOSER = (
    f"BertFor{name}"
    for name in (
        "SequenceClassification",
        "TokenClassification",
        "QuestionAnswering",
        "MultipleChoice",
    )
)
IOB1 = ["O", "B-LOC", "I-LOC", "I-PER"]


@pytest.fixture
def folder(tmp_path, tokenizer):
    """Saves a random model of a class of `transformers`, as that does; gives folder and model."""

    def save(architecture, **config):
        torch.manual_seed(0)
        names = config.pop("labels", None)
        if names is not None:
            config |= {
                "id2label": dict(enumerate(names)),
                "label2id": {name: index for index, name in enumerate(names)},
            }
        small = BertConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            **{"max_position_embeddings": 64} | config,
        )
        model = getattr(transformers, architecture)(small).eval()
        for parameter in model.parameters():
            parameter.data += torch.randn_like(parameter) * 0.1
        model.save_pretrained(tmp_path / "model")
        theirs(tokenizer).save_pretrained(tmp_path / "model")
        return tmp_path / "model", model

    return save


def theirs(tokenizer, **settings):
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "unk")}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=48, **special, **settings
    )


EXAMPLES = {
    CLASSIFIER: [Text("the cat sat", "dogs run far", None), Text("a mat", "slowly", None)],
    TAGGER: [TaggedSentence(["the", "cat", "sat"]), TaggedSentence(["dogs"])],
    READER: [Question("1", "the cat", "a mat on the mat", None)],
    CHOOSER: [Choices("the cat", ("sat on", "far away slowly"), None)],
}
TASK_OF = {
    CLASSIFIER: "classification",
    TAGGER: "tagging",
    READER: "question_answering",
    CHOOSER: "multiple_choice",
}


@pytest.mark.parametrize("architecture", EXAMPLES)
def test_logits_are_those_of_transformers(folder, architecture):
    labels = {CLASSIFIER: ["a", "b", "c"], TAGGER: IOB1}.get(architecture)
    path, model = folder(architecture, labels=labels)
    predictor = load_predictor(path)
    assert predictor.task_name == TASK_OF[architecture]
    assert list(predictor.task.labels) == (labels or [])
    assert predictor.task.max_length == 48
    predictions, rows = predictor.predict_examples(EXAMPLES[architecture])
    assert len(predictions) == len(EXAMPLES[architecture])
    ours, _ = compute_all_outputs(predictor.task, predictor.model, rows, device=predictor.device)
    with torch.no_grad():
        logits, _ = their_outputs(model, rows, np.arange(rows.num_items))
    np.testing.assert_allclose(ours, logits.numpy(), atol=1e-5)


def test_windows_of_a_short_model_overlap(folder):
    path, _ = folder(READER)
    predictor = load_predictor(path)
    context = " ".join(["the cat sat on a mat"] * 40)
    rows = predictor.task.encode([Question("", "the cat", context, None)], predictor.tokenizer)
    starts, lengths = rows.notes["window_start"], rows.lengths - rows.first_lengths - 1
    assert len(starts) > 2 and (starts[:-1] + lengths[:-1] - starts[1:] > 10).all()


def test_a_tagger_that_keeps_its_pooler_does_not_use_it(folder):
    from safetensors.torch import load_file, save_file

    path, _ = folder(TAGGER, labels=IOB1)
    expected = load_predictor(path).predict_examples(EXAMPLES[TAGGER])[0]
    weights = load_file(path / "model.safetensors")
    weights |= {
        "bert.pooler.dense.weight": torch.randn(32, 32),
        "bert.pooler.dense.bias": torch.randn(32),
    }
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    assert load_predictor(path).predict_examples(EXAMPLES[TAGGER])[0] == expected


def test_a_tagger_of_iob1_takes_the_tags_of_any_data(folder):
    predictor = load_predictor(folder(TAGGER, labels=IOB1)[0])
    gold = [TaggedSentence(["the", "cat", "sat"], ["B-PER", "I-PER", "B-LOC"])]
    predictions, rows = predictor.predict_examples(gold)
    assert rows.labels.tolist() == [3, 3, 1]
    assert "f1" in predictor.task.metrics(predictions, gold)
    plain = load_predictor(folder(TAGGER, labels=["NN", "VBZ"])[0])
    assert plain.task.criterion == "accuracy"


@pytest.mark.parametrize(
    ("config", "kind", "labels"),
    [
        ({"num_labels": 1}, "regression", ()),
        ({"num_labels": 2}, "single", ("0", "1")),
        (
            {"num_labels": 3, "problem_type": "multi_label_classification"},
            "multiple",
            ("0", "1", "2"),
        ),
        ({"labels": ["b", "a"]}, "single", ("b", "a")),
    ],
)
def test_the_kind_of_a_classifier(folder, config, kind, labels):
    task = load_predictor(folder(CLASSIFIER, **config)[0]).task
    assert (task.kind, task.labels) == (kind, labels)


@pytest.mark.parametrize(
    ("said", "labels", "published"),
    [
        ({"id2label": {"2": "c", "0": "a", "1": "b"}}, ("a", "b", "c"), ("a", "b", "c")),
        ({"id2label": None}, ("0", "1", "2"), ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {}}, ("0", "1", "2"), ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({}, ("0", "1", "2"), ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {"0": 5, "1": True, "2": "x"}}, ("5", "True", "x"), ("5", "True", "x")),
        (
            {"id2label": {"0": "LABEL_1", "1": "LABEL_0", "2": "LABEL_2"}},
            ("LABEL_1", "LABEL_0", "LABEL_2"),
            ("LABEL_1", "LABEL_0", "LABEL_2"),
        ),
    ],
)
def test_labels_are_those_of_the_folder(folder, said, labels, published):
    path, _ = folder(CLASSIFIER, num_labels=3)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | said))
    task = load_predictor(path).task
    assert (task.labels, task.output_names) == (labels, published)


@pytest.mark.parametrize(
    "labels",
    [{"0": "a", "1": "b"}, {"1": "a", "2": "b", "3": "c"}, {"a": "a"}, ["a", "b", "c"]]
    + [{"0": "a", "1": "a", "2": "b"}, {"0": "a", "1": "b", "2": "c", "3": "d"}],
)
@pytest.mark.parametrize("architecture", [CLASSIFIER, TAGGER])
def test_labels_that_are_not_those_of_the_outputs_are_refused(folder, architecture, labels):
    path, _ = folder(architecture, num_labels=3)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"id2label": labels}))
    with pytest.raises(ModelFolderError, match="id2label"):
        load_predictor(path)


def test_tags_without_names_keep_the_usual_ones(folder):
    assert load_predictor(folder(TAGGER, num_labels=2)[0]).task.labels == ("LABEL_0", "LABEL_1")


def test_texts_and_pairs_are_read_unless_the_task_says_it(folder):
    path, model = folder(CLASSIFIER, labels=["a", "b"])
    predictor = load_predictor(path)
    assert predictor.task.reads_pairs is None
    texts = [Text("the cat", "sat", None), Text("the cat", None, None)]
    both, _ = predictor.predict_examples(texts)
    for each, expected in zip(texts, both, strict=True):
        (alone,), rows = predictor.predict_examples([each])
        with torch.no_grad():
            theirs = their_outputs(model, rows, np.arange(1))[0].softmax(-1)[0].tolist()
        assert [*expected["scores"].values()] == pytest.approx(theirs, abs=1e-5)
        assert [*alone["scores"].values()] == pytest.approx(theirs, abs=1e-5)
    for name, expected in {"mrpc": True, "sst2": False}.items():
        path, _ = folder(CLASSIFIER)
        assert load_predictor(path, task_name=name).task.reads_pairs is expected


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"activation_fn": "torch.nn.modules.activation.Tanh"}, "Tanh"),
        ({"activation_fn": ["Tanh"]}, "activation"),
        ({"activation_fn": 3}, "activation 3"),
        ({"default_prompt_name": "query", "prompts": {"query": "Query: "}}, "prompt"),
    ],
)
def test_what_is_not_done_of_a_cross_encoder_is_refused(folder, said, named):
    path, _ = folder(CLASSIFIER, num_labels=1)
    (path / "config_sentence_transformers.json").write_text(json.dumps(said))
    with pytest.raises(ModelFolderError, match=named):
        load_predictor(path)


def test_rows_of_a_cross_encoder_are_as_long_as_its_folder_says(folder):
    path, _ = folder(CLASSIFIER, num_labels=1)
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')
    assert load_predictor(path).task.max_length == 48
    (path / "modules.json").write_text("[]")
    assert load_predictor(path).task.max_length == 32
    for length in (3, "32", True):
        settings = json.dumps({"max_seq_length": length})
        (path / "sentence_bert_config.json").write_text(settings)
        with pytest.raises(UserError, match="max_seq_length"):
            load_predictor(path)


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("mrpc", None, ("0", "1")),
        ("mrpc", ["not_equivalent", "equivalent"], ("0", "1")),
        ("mrpc", ["equivalent", "not_equivalent"], ("1", "0")),
        ("sst2", ["NEGATIVE", "POSITIVE"], ("0", "1")),
        ("wnli", ["not_entailment", "entailment"], ("0", "1")),
        ("rte", ["ENTAILMENT", "NOT_ENTAILMENT"], ("entailment", "not_entailment")),
        (
            "mnli",
            ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"],
            ("contradiction", "neutral", "entailment"),
        ),
    ],
)
def test_the_user_may_name_the_task(folder, name, labels, expected):
    predictor = load_predictor(folder(CLASSIFIER, labels=labels)[0], task_name=name)
    assert (predictor.task_name, predictor.task.labels) == (name, expected)
    assert predictor.task.text_column == TASKS[name].text_column
    assert predictor.task.criterion == TASKS[name].criterion


def test_rows_are_as_long_as_the_model_takes_them(folder, tmp_path):
    path, _ = folder(READER, max_position_embeddings=500)
    config = json.loads((path / "tokenizer_config.json").read_text())
    for written, name, expected in (
        (400, "squad", 384),
        (200, "squad", 200),
        (10**30, "squad_v2", 384),
        (None, None, 384),
    ):
        config["model_max_length"] = written
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        predictor = load_predictor(path, task_name=name)
        assert predictor.task.max_length == expected
    path, _ = folder(CLASSIFIER)
    (path / "tokenizer_config.json").unlink()
    assert load_predictor(path).task.max_length == 64


@pytest.mark.parametrize(
    ("architecture", "config", "name", "said"),
    [
        (CLASSIFIER, {"labels": ["x", "y"]}, "mrpc", "labels x, y where the task has 0, 1: .*mrpc"),
        (CLASSIFIER, {"num_labels": 3}, "mrpc", "labels LABEL_0, LABEL_1, LABEL_2 where .* 0, 1"),
        (CLASSIFIER, {"num_labels": 2}, "stsb", "2 outputs where the task has 1: .* as stsb"),
        (
            CLASSIFIER,
            {"num_labels": 2, "problem_type": "regression"},
            None,
            "2 outputs where the task has 1",
        ),
        (TAGGER, {}, "mrpc", f"a {TAGGER}, and the task mrpc needs a {CLASSIFIER}"),
        ("BertForMaskedLM", {}, None, "no known task in the model"),
        (CLASSIFIER, {"is_decoder": True}, None, "a classifier that attends to the left only"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(folder, architecture, config, name, said):
    with pytest.raises(ModelFolderError, match=said) as caught:
        _ = load_predictor(folder(architecture, **config)[0], task_name=name).task
    assert "\n" not in str(caught.value)


def test_a_folder_without_weights_of_its_head_or_an_unknown_task_is_refused(folder):
    path, _ = folder("BertModel")
    config = json.loads((path / "config.json").read_text())
    for changed, name, error, said in (
        ({"architectures": [CLASSIFIER]}, None, ModelFolderError, "without its head"),
        ({"architectures": [CLASSIFIER]}, "mprc", TaskDataError, "unknown task: --task mprc"),
    ):
        (path / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(error, match=said):
            load_predictor(path, task_name=name)
