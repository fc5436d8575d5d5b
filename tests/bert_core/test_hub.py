"""Data sets and models of the Hub by their address, as far as that goes without a network."""

import sys
import time

import pytest

import bert_core
from bert_core.hub import (
    HubAddress,
    HubError,
    fetch_hub_model,
    load_hub_data,
    require_datasets,
)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("hf://nyu-mll/glue", ("nyu-mll/glue", None, None)),
        ("hf://nyu-mll/glue:mrpc", ("nyu-mll/glue", "mrpc", None)),
        (
            "hf://Salesforce/wikitext:wikitext-2-v1:test",
            ("Salesforce/wikitext", "wikitext-2-v1", "test"),
        ),
        ("hf://a/b::train", ("a/b", None, "train")),
        ("hf:///data/copy", ("/data/copy", None, None)),
    ],
)
def test_an_address_has_a_name_a_config_and_a_split(typed, expected):
    address = HubAddress.of(typed)
    assert (address.name, address.config, address.split) == expected


@pytest.mark.parametrize(
    "typed", ["hf://", "hf://squad", "hf://csv", "hf://./folder", "hf://a/b/c", "hf://a b/c"]
)
def test_what_may_be_a_path_is_no_address(typed):
    with pytest.raises(HubError, match="no name of a data set: .*OWNER/NAME"):
        HubAddress.of(typed)


def test_a_name_is_never_a_folder_of_the_working_directory(tmp_path, monkeypatch):
    from huggingface_hub import constants

    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "train.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="cannot load the data set: hf://owner/name"):
        load_hub_data(HubAddress.of("hf://owner/name"))


def test_a_copy_on_this_machine_is_loaded_whole_and_by_split(hub_copy):
    from datasets import Value

    typed = hub_copy({"text": Value("string")}, train={"text": ["a", "b"]}, test={"text": ["c"]})
    found = load_hub_data(HubAddress.of(typed))
    assert {name: each["text"][:] for name, each in found.items()} == {
        "train": ["a", "b"],
        "test": ["c"],
    }
    stream = load_hub_data(HubAddress.of(typed), split="test", streaming=True)
    assert list(stream) == [{"text": "c"}]


def test_whatever_is_wrong_is_one_line(hub_copy, tmp_path):
    from datasets import Value

    typed = hub_copy({"text": Value("string")}, train={"text": ["a"]})
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "train.parquet").write_bytes(b"PAR1")
    for address, said in (
        (typed.replace("small", "xy"), "BuilderConfig 'xy' not found"),
        (f"hf://{tmp_path}/absent", "no such folder"),
        (f"hf://{tmp_path}/empty", "any data files"),
        (f"hf://{tmp_path}/damaged", "Parquet"),
    ):
        with pytest.raises(HubError, match=said) as caught:
            load_hub_data(HubAddress.of(address))
        assert "\n" not in str(caught.value) and address in str(caught.value)


def test_without_a_network_it_is_said_at_once(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(HubError, match=r"no answer from http://127.*HF_HUB_OFFLINE=1"):
        load_hub_data(HubAddress.of("hf://nyu-mll/glue:mrpc"))
    assert time.monotonic() - began < 10


def test_the_library_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(HubError, match=r"pip install -e '\.\[datasets\]'"):
        require_datasets(HubAddress.of("hf://nyu-mll/glue"))


@pytest.fixture
def hub_cache(tmp_path, monkeypatch, minilm_folder):
    """The cache of the Hub's client with a model of one commit, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--owner--name"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("ab" * 20)
    (model / "snapshots").mkdir()
    (model / "snapshots" / ("ab" * 20)).symlink_to(minilm_folder)
    return tmp_path


def test_a_model_of_the_hub_comes_from_the_cache_where_there_is_no_network(hub_cache):
    model = fetch_hub_model("hf://owner/name")
    assert (model.name, model.version) == ("name", f"hf://owner/name@{'ab' * 20}")
    assert fetch_hub_model(model.version).folder == model.folder
    vectors = bert_core.load("hf://owner/name").embed(["a text"])
    assert vectors.shape == (1, 384)


def test_all_that_is_read_of_a_model_comes_and_nothing_else(tmp_path, monkeypatch):
    from huggingface_hub.utils import filter_repo_objects

    read = {"config.json", "tokenizer.json", "model.safetensors", "modules.json"}
    read |= {f"{name}/config.json" for name in ("1_Pooling", "1_SpladePooling", "2_Dense")}
    read |= {"2_Dense/model.safetensors", "sentence_roberta_config.json"}
    other = {"pytorch_model.bin", "2_Dense/pytorch_model.bin", "onnx/model.onnx", "README.md"}
    came = []

    def download(name, *, revision, allow_patterns):
        came.extend(filter_repo_objects(sorted(read | other), allow_patterns=allow_patterns))
        for file in came:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text("{}")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("bert_core.hub._refuse_unreachable_hub", lambda _: None)
    fetch_hub_model("hf://owner/name")
    assert set(came) == read


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ("config.json", "tokenizer.json"),
            r"no safetensors.*BertModel\.from_pretrained\('owner/n",
        ),
        (("config.json", "model.safetensors"), r"no tokenizer\.json or.*AutoTokenizer\.from_pre"),
        (("modules.json", "0_Transformer/config.json"), r"of its own.*S\('\"'\"'owner/name'"),
        ((), r"no config\.json"),
    ],
)
def test_a_model_in_other_formats_is_refused_with_its_name(tmp_path, monkeypatch, files, message):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--owner--name"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("ab" * 20)
    folder = model / "snapshots" / ("ab" * 20)
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text('{"architectures": ["BertModel"]}')
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.raises(HubError, match=message) as raised:
        fetch_hub_model("hf://owner/name")
    assert str(tmp_path) not in str(raised.value)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("hf://owner/other", "its cache here has no such model"),
        ("hf://owner/name@v2", "its cache here has no such model"),
        ("hf://name", "no name of a model"),
        ("hf://owner/name@", "no name of a model"),
        ("hf://../../etc", "no name of a model"),
    ],
)
def test_a_model_that_cannot_be_had_is_one_line(hub_cache, typed, message):
    with pytest.raises(HubError, match=message) as raised:
        fetch_hub_model(typed)
    assert "\n" not in str(raised.value) and typed in str(raised.value)


def test_without_an_answer_the_cache_is_asked_in_seconds(hub_cache, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    begin = time.monotonic()
    assert fetch_hub_model("hf://owner/name").name == "name"
    with pytest.raises(HubError, match="its cache here has no such model"):
        fetch_hub_model("hf://owner/other")
    assert time.monotonic() - begin < 30
