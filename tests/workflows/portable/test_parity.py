"""The padded forward pass is held to the packed path, for models of every kind."""

import numpy as np
import pytest
import torch
from running import write_models, write_modern
from small_tasks import write_encoder

from bert_core.errors import UserError
from bert_core.features.sentence_pooling import SentencePooling, sentence_modules
from bert_core.model.layout import Packed
from bert_core.model.strategies import STRATEGIES
from bert_core.model.tagger import FEATURE_TAGGER, FeatureTagger
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.portable import INPUTS, load_padded_model
from bert_core.quantization import PRECISION_FIELD
from bert_core.tasks.catalog import TASKS, task_config
from bert_core.tasks.task import add_task_head
from workflows.portable.parity import NUM_TEXTS, decision, example_texts, reference


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of every kind that can be exported, by name."""
    root = tmp_path_factory.mktemp("models")
    found = write_models(root)
    for name in ("swag", "embedding", "sparse"):
        _, model, tokenizer = load_model_folder(found["encoder"])
        torch.manual_seed(1)
        add_task_head(model, TASKS[name])
        for parameter in model.heads.parameters():  # so that what it says varies
            parameter.data.normal_()
        found[name] = root / name
        config = task_config(name, TASKS[name])
        save_model_folder(found[name], model, tokenizer, extra_config=config)
    for name, pooling in {"modern": None, "modern_cls": "cls", "modern_mean": "mean"}.items():
        found[name] = write_modern(root / name, found["encoder"], pooling)
    for pooling in ("cls", "max"):
        _, model, tokenizer = load_model_folder(found["encoder"])
        said = SentencePooling(pooling, normalize=True, max_length=40)
        found[pooling] = root / pooling
        files = sentence_modules(said, model.config.hidden_size)
        save_model_folder(found[pooling], model, tokenizer, modules=files)
    return found


def eager(model):
    """A graph that is the padded model itself."""

    def run(inputs):
        tensors = [torch.from_numpy(np.asarray(inputs[name])) for name in INPUTS]
        found = model(*tensors)
        return {name: each.numpy() for name, each in zip(model.output_names, found, strict=True)}

    return run


KINDS = {
    "sentiment": ("row", 2),
    "paraphrase": ("row", 2),
    "topics": ("row", 3),
    "grade": ("row", 1),
    "relevance": ("row", 1),
    "swag": ("row", 1),
    "entities": ("token", 5),
    "answers": ("span", 2),
    "encoder": ("word", 120),
    "embedding": ("vector", 32),
    "cls": ("vector", 32),
    "max": ("vector", 32),
    "sparse": ("sparse_vector", 120),
    "modern": ("word", 61),
    "modern_cls": ("row", 2),
    "modern_mean": ("row", 2),
}


@pytest.mark.some(6)
@pytest.mark.parametrize("name", KINDS)
def test_padded_and_packed_say_the_same(folders, name):
    model = load_padded_model(folders[name])
    expected = reference(folders[name], model)
    parity = expected.compare(eager(model), model)
    assert (model.answer, expected.outputs.shape[1]) == KINDS[name]
    assert parity.largest < 1e-5, parity
    assert parity.num_inputs == NUM_TEXTS and parity.equal in (1.0, None)
    assert parity.longest == model.max_length and parity.shortest <= 6
    assert np.abs(expected.outputs).max() > 0.1  # there is something to differ


def test_states_are_those_of_the_packed_encoder(folders):
    model = load_padded_model(folders["encoder"])
    lengths = [9, 1, 4]
    ids = torch.randint(5, 100, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(9) < torch.tensor(lengths)[:, None]).long()
    segments = (torch.arange(9) > 2).long().expand(3, 9)
    real = mask.bool()
    with torch.inference_mode():
        padded = model.states(ids * mask, mask, segments)
        packed = (
            load_model_folder(folders["encoder"])[1]
            .eval()
            .encoder(
                ids[real],
                segments[real],
                torch.arange(9).repeat(3, 1)[real],
                Packed.from_lengths(lengths),
            )
        )
    assert (padded[real] - packed).abs().max() < 1e-5


@pytest.mark.parametrize("wrong", ["attention_mask", "token_type_ids"])
def test_a_graph_that_leaves_an_input_out_is_noticed(folders, wrong):
    model = load_padded_model(folders["paraphrase"])
    run = eager(model)
    value = 1 if wrong == "attention_mask" else 0

    def graph(inputs):
        return run(inputs | {wrong: np.full_like(inputs[wrong], value)})

    assert reference(folders["paraphrase"], model).compare(graph, model).largest > 1e-3


def test_a_graph_that_gives_no_numbers_is_no_equal(folders):
    model = load_padded_model(folders["sentiment"])

    def graph(inputs):
        return {"logits": np.full((len(inputs["input_ids"]), 2), np.nan, np.float32)}

    assert np.isnan(reference(folders["sentiment"], model).compare(graph, model).largest)


def test_decisions_are_without_scores():
    entity = {"type": "PER", "start": 0, "end": 2, "score": 0.9}
    assert decision({"entities": [entity]}) == decision({"entities": [entity | {"score": 0.5}]})
    assert decision({"entities": [entity]}) != decision({"entities": [entity | {"end": 1}]})
    assert decision({"labels": ["a", "b"]}) == decision({"labels": ["b", "a"]})
    found = [{"candidates": [{"id": 3, "score": 1.0}]}]
    assert decision({"masks": found}) == [3]


def test_texts_are_the_same_ones_each_time_and_of_all_lengths():
    texts = example_texts(50)
    assert texts == example_texts(50)
    sizes = [len(text.split()) for text in texts]
    assert (min(sizes), max(sizes), len(sizes)) == (1, 50, NUM_TEXTS)
    assert sizes != sorted(sizes)
    assert max(len(text.split()) for text in example_texts(8192)) == 512, "an export has an end"


def int8(folder, encoder):
    _, model, tokenizer = load_model_folder(encoder)
    save_model_folder(folder, model, tokenizer, extra_config={PRECISION_FIELD: "int8"})


def decoder(folder, encoder):
    _, model, tokenizer = load_model_folder(encoder, changes={"is_decoder": True})
    model.heads.clear()
    save_model_folder(folder, model, tokenizer)


def tagger(folder, encoder):
    config, model, tokenizer = load_model_folder(encoder)
    head = FeatureTagger(STRATEGIES["last"], config, num_outputs=5, lstm_size=8, lstm_layers=1)
    model.heads = torch.nn.ModuleDict({FEATURE_TAGGER: head})
    task = TASKS["ner"].model_copy(update={"labels": tuple("abcde")})
    save_model_folder(folder, model, tokenizer, extra_config=task_config("ner", task))


@pytest.mark.parametrize(
    ("write", "said"), [(int8, "in int8"), (decoder, "to the left"), (tagger, "BiLSTM")]
)
def test_kinds_that_cannot_be_exported_are_refused(write, said, tmp_path):
    write(tmp_path / "model", write_encoder(tmp_path / "encoder"))
    with pytest.raises(UserError, match=said) as caught:
        load_padded_model(tmp_path / "model")
    assert str(tmp_path / "model") in str(caught.value)
