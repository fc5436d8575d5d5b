import json
import os
import resource
import struct

import pytest
import torch
from safetensors.torch import save_file

from bert_core.config import ModelConfig
from bert_core.model_folder import ModelFolderError, load_model_folder, save_model_folder
from bert_core.tokenizer import SPECIAL_TOKENS, wordpiece_tokenizer
from bert_core.weights_header import TensorHeader, check_header, read_weights_header


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


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    "value",
    [-1, 0, True, 1.5, "64", None, 1e308, 2**31, 2**63, 10**400, [], {}, [64], 9_999_999, 996],
)
def test_sizes_that_the_weights_do_not_have_are_refused_before_memory_is_taken(folder, name, value):
    configure(folder, **{name: value})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
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
    check_header(header, small_config)
    name = "bert.encoder.layer.0.output.dense.weight"
    for dtype in ("I8", "BOOL", "F8_E4M3", "C64", "U64"):
        with pytest.raises(ValueError, match=f"{name} is of type {dtype}"):
            check_header(header | {name: TensorHeader(dtype, header[name].shape)}, small_config)
    halves = {key: TensorHeader("BF16", each.shape) for key, each in header.items()}
    check_header(halves, small_config)


def test_names_without_their_prefix_and_the_projection_alone_are_understood(small_config, folder):
    header = read_weights_header(folder / "model.safetensors")
    bare = {name.removeprefix("bert."): each for name, each in header.items()}
    check_header(bare, small_config)
    words = header.pop("bert.embeddings.word_embeddings.weight")
    with pytest.raises(ValueError, match="no bert.embeddings.word_embeddings.weight"):
        check_header(header, small_config)
    check_header(header | {"cls.predictions.decoder.weight": words}, small_config)


def test_a_thousand_layers_that_are_not_there_cost_nothing(folder, small_config):
    header = read_weights_header(folder / "model.safetensors")
    config = ModelConfig.model_validate(small_config.model_dump() | {"num_hidden_layers": 1000})
    with pytest.raises(ValueError, match="layer"):
        check_header(header, config)


@pytest.mark.parametrize("shape", [(1 << 40, 0), (0, 64), (3, 63), (3,), ()])
def test_a_head_is_no_larger_than_its_weights(tmp_path, folder, shape):
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    weights |= {"classifier.weight": torch.zeros(shape), "classifier.bias": torch.zeros(3)}
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelFolderError, match="classifier"):
        load_model_folder(folder)
