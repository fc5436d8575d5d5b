"""Models in int8: what they compute, and which folders are."""

import json
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.model.bert import Bert
from bert_core.model.cpu.linear import Int8Linear, onednn_is_faster_here, weight_levels
from bert_core.model.encoder import Encoder
from bert_core.model.layout import Packed
from bert_core.model_folder import CHECKSUMS, ModelFolderError, load_model_folder, save_model_folder
from bert_core.predictor import Predictor, load_predictor
from bert_core.quantization import PRECISION_FIELD, for_inference, read_precision
from bert_core.tasks.catalog import task_config
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.encoded_rows import layout_for
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import add_task_head, compute_outputs, task_loss
from bert_core.tasks.text_tagging import TextTagging
from bert_core.tokenizer_training import train_wordpiece

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TEXTS = [Text("one two " * n, None, answer) for n, answer in ((1, "a"), (9, "b"), (4, None))]


@pytest.fixture
def tokenizer():
    return train_wordpiece(["one two three"] * 3, 60, lowercase=True)


@pytest.fixture
def task():
    return Classification(labels=("a", "b"))


@pytest.fixture
def model(small_config, task):
    torch.manual_seed(0)
    model = Bert(Encoder(small_config), {})
    add_task_head(model, task)
    return model


@pytest.mark.parametrize("max_tokens", [8, 30, 1000])
def test_outputs_stand_in_the_order_of_the_examples(model, task, tokenizer, max_tokens):
    rows = task.encode(TEXTS, tokenizer)
    model.train()
    outputs, loss = compute_all_outputs(task, model, rows, device=CPU, max_tokens=max_tokens)
    assert model.training, "left as it was"
    model.eval()
    for number in range(3):
        batch = rows.batch(np.array([number]), "packed")
        alone = compute_outputs(model, batch).detach().numpy()
        np.testing.assert_allclose(outputs[number : number + 1], alone, rtol=1e-4, atol=1e-6)
    whole = task_loss(task, model, rows.batch(np.arange(3), "packed"), num_labels=1)[0]
    assert loss == pytest.approx(whole.item(), rel=1e-5)


def test_nothing_to_predict_gives_nothing(model, task, tokenizer):
    outputs, loss = compute_all_outputs(task, model, task.encode([], tokenizer), device=CPU)
    assert outputs.shape == (0, 2) and loss == 0


def test_an_encoder_that_knows_no_task_is_refused(small_config, tokenizer, tmp_path):
    save_model_folder(tmp_path / "model", Bert(Encoder(small_config), {}), tokenizer, card="")
    with pytest.raises(ModelFolderError, match="no known task.*finetune.py"):
        _ = load_predictor(tmp_path / "model").task


def test_rows_are_packed_wherever_attention_can_have_it():
    plain = ModelConfig(attention_probs_dropout_prob=0)
    paper = ModelConfig()
    assert layout_for(paper, CPU, None, training=True) == "packed"
    assert layout_for(paper, CUDA, torch.bfloat16, training=False) == "packed"
    assert layout_for(paper, CUDA, torch.bfloat16, training=True) == "padded"
    assert layout_for(plain, CUDA, torch.bfloat16, training=True) == "packed"
    assert layout_for(plain, CUDA, None, training=True) == "padded"


def test_raw_texts_without_labels_have_no_loss(small_config, tokenizer):
    task = Tagging(labels=("O", "B-X"), max_length=16)
    model = Bert(Encoder(small_config), {})
    add_task_head(model, task)
    predictor = Predictor(model, tokenizer, task, "ner")
    codec = TextTagging(task)
    rows = codec.encode(["one two", "three"], tokenizer)
    found = predictor.answer(codec, rows, ["one two", "three"], max_tokens=8)
    of_words, _ = predictor.predict_examples(
        [TaggedSentence(["one", "two"]), TaggedSentence(["three"])]
    )
    scores = [[each["score"] for each in one["entities"]] for one in found]
    assert scores == [
        pytest.approx([each["score"] for each in one["entities"]], abs=1e-6) for one in of_words
    ]
    assert compute_all_outputs(task, model, rows, device=CPU)[1] == 0


SENTENCES = [
    "The cat sat on a mat.",
    "Dogs run far away, slowly, and nobody knows why they would not come back.",
    "The European Commission rejected German advice to shun British lamb on Thursday.",
    "torch.nn.functional.linear applies a linear map to the incoming data.",
    "12 : 30",
    "word " * 200,
]


def save_in_int8(folder, model, tokenizer):
    task = Classification(labels=("a", "b"))
    add_task_head(model, task)
    config = task_config("classification", task) | {PRECISION_FIELD: "int8"}
    save_model_folder(folder, model, tokenizer, card="", extra_config=config)
    return folder


@pytest.fixture(scope="module")
def minilm(minilm_folder):
    """Makes models of a published encoder for inference in some precision."""
    _, loaded, _ = load_model_folder(minilm_folder)

    def make(precision=None):
        model = deepcopy(loaded).eval()
        return model if precision is None else for_inference(model, precision, CPU)

    return make


@pytest.mark.slow
def test_vectors_of_a_real_encoder_keep_their_direction(minilm, extractor_of):
    extractor, model = extractor_of(), minilm()
    before = sum(each.nbytes for each in model.encoder.layers.state_dict().values())
    for_inference(model, "int8", CPU)
    after = sum(each.nbytes for each in model.encoder.layers.state_dict().values())
    assert after < 0.27 * before
    first = extractor.of_texts(SENTENCES)
    second = replace(extractor, encoder=model.eval().encoder).of_texts(SENTENCES)
    cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1)
    cosines /= np.linalg.norm(second, axis=1)
    assert cosines.min() > (0.995 if weight_levels() == 127 else 0.99) and cosines.max() < 1 - 1e-6


def test_a_text_has_the_same_vector_alone_and_in_company(minilm, extractor_of):
    extractor = replace(extractor_of(), encoder=minilm("int8").encoder)
    together = extractor.of_texts(SENTENCES)
    for text, wanted in zip(SENTENCES, together, strict=True):
        np.testing.assert_allclose(extractor.of_texts([text])[0], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("precision", "threads"),
    [pytest.param("int8", 2, marks=pytest.mark.slow), ("float32", 1)],
)
def test_states_of_a_row_are_the_same_to_the_bit_in_any_company(minilm, precision, threads):
    """A difference in the last bit would be one of a whole step somewhere in the next layer.

    MKL, which computes float32 where oneDNN does not, promises no such thing.
    """
    tolerance = 0 if precision == "int8" or onednn_is_faster_here() else 2e-5
    encoder = minilm(precision).encoder
    choose = np.random.default_rng(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count, longest in ((16, 60), (30, 12), (2, 250)):
            lengths = choose.integers(3, longest, count)
            rows = [torch.from_numpy(choose.integers(1000, 30_000, length)) for length in lengths]
            together = states(encoder, rows).split(lengths.tolist())
            for row, found in zip(rows, together, strict=True):
                torch.testing.assert_close(found, states(encoder, [row]), rtol=0, atol=tolerance)
    finally:
        torch.set_num_threads(before)


def states(encoder, rows):
    ids = torch.cat(rows)
    positions = torch.cat([torch.arange(len(row)) for row in rows])
    layout = Packed.from_lengths([len(row) for row in rows])
    with torch.inference_mode():
        return encoder(ids, torch.zeros_like(ids), positions, layout)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "float32"])
def test_a_decoder_looks_to_the_left_in_any_numbers(minilm_folder, precision):
    _, model, _ = load_model_folder(minilm_folder, changes={"is_decoder": True})
    encoder = for_inference(model, precision, CPU).encoder
    row = torch.arange(1000, 1020)
    whole, beginning = states(encoder, [row]), states(encoder, [row[:12]])
    # As the first of two rows it is padded nowhere either.
    beside = states(encoder, [row, row[:7]])[:20]
    # A last bit of the attention may become a whole step of int8 in the next layer, on some CPUs
    # more often. For an encoder that looks both ways the mean is 0.11.
    tolerance = 1e-5 if precision == "float32" else 0.03
    assert (whole[:12] - beginning).abs().mean() < tolerance
    assert (whole - beside).abs().mean() < tolerance


def test_a_folder_says_in_which_numbers_it_is_computed(small_model, tokenizer, tmp_path):
    folder = save_in_int8(tmp_path / "model", small_model, tokenizer)
    assert read_precision(folder) == "int8"
    predictor = load_predictor(folder)
    kinds = [type(layer.query_key_value) for layer in predictor.model.encoder.layers]
    assert kinds == [Int8Linear] * 3
    assert isinstance(load_extractor(folder, FeatureChoice()).encoder.layers[2].output, Int8Linear)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    (folder / CHECKSUMS).unlink()
    path.write_text(json.dumps(config | {PRECISION_FIELD: "int4"}))
    with pytest.raises(UserError, match=r"int4.*float32 and int8"):
        load_predictor(folder)
    del config[PRECISION_FIELD]
    path.write_text(json.dumps(config))
    assert read_precision(folder) == "float32"
    assert not isinstance(load_predictor(folder).model.encoder.layers[0].output, Int8Linear)


def test_predictions_are_near_those_in_float32(small_model, tokenizer, tmp_path):
    folder = save_in_int8(tmp_path / "model", small_model, tokenizer)
    in_int8 = load_predictor(folder)
    in_float32 = replace(in_int8, model=load_model_folder(folder)[1].eval())
    examples = [Text("one two " * n, None, None) for n in (1, 5, 9)]
    found, wanted = (each.predict_examples(examples)[0] for each in (in_int8, in_float32))
    assert found != wanted
    for one, other in zip(found, wanted, strict=True):
        assert one["scores"] == pytest.approx(other["scores"], abs=0.01)


def test_only_the_cpu_computes_it(small_model):
    with pytest.raises(UserError, match=r"on the CPU only.*cuda"):
        for_inference(small_model, "int8", torch.device("cuda"))
    assert isinstance(small_model.encoder.layers[0].output, torch.nn.Linear)


def test_a_model_that_has_lost_its_weights_is_not_saved(small_model, tokenizer, tmp_path):
    for_inference(small_model, "int8", CPU)
    for_inference(small_model, "int8", CPU)  # once more is nothing
    with pytest.raises(ValueError, match="int8"):
        save_model_folder(tmp_path / "model", small_model, tokenizer, card="")
    assert not (tmp_path / "model").exists()


def test_a_folder_in_int8_is_learned_from_in_float32(small_model, tokenizer, tmp_path):
    folder = save_in_int8(tmp_path / "model", small_model, tokenizer)
    _, model, _ = load_model_folder(folder)
    weight = small_model.encoder.layers[1].intermediate.weight
    assert torch.equal(model.encoder.layers[1].intermediate.weight, weight)
