"""A model folder replaces another, and is killed, or fails, at every step that changes the disk."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertForMaskedLM,
    BertForPreTraining,
    BertLMHeadModel,
    BertModel,
)

from bert_core import disk
from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.lineage import Lineage, read_lineage
from bert_core.model.bert import HEADS, Bert
from bert_core.model_folder import (
    ModelFolderError,
    load_model_folder,
    save_model_folder,
)
from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.tokenizer import wordpiece_tokenizer, write_tokenizer
from bert_core.tokenizer_training import train_tokenizer, train_wordpiece

WORDS = ["a", "b", "##b", "hello", "wo", "##rld", "e", "##e", "中", ",", "!"]


@pytest.fixture
def tokenizer():
    entries = [*SPECIAL_TOKENS, *WORDS]
    return wordpiece_tokenizer({word: i for i, word in enumerate(entries)}, lowercase=True)


@pytest.fixture
def folder(tmp_path, small_model, tokenizer):
    save_model_folder(tmp_path / "model", small_model, tokenizer, "# A card\n")
    return tmp_path / "model"


def test_comes_back_as_it_was(folder, small_config, small_model, tokenizer):
    config, model, loaded = load_model_folder(folder)
    assert config == small_config
    assert loaded.to_str() == tokenizer.to_str()
    state = small_model.state_dict()
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert (folder / "README.md").read_text() == "# A card\n"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_loading_draws_nothing_unless_what_is_drawn_next_depends_on_it(folder):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    _, model, _ = load_model_folder(folder)
    assert torch.equal(torch.get_rng_state(), state)
    _, drawn, _ = load_model_folder(folder, draws=True)
    after = torch.get_rng_state()
    assert not torch.equal(after, state)
    torch.manual_seed(0)
    Bert.for_pretraining(model.config)
    assert torch.equal(torch.get_rng_state(), after), "as many numbers as a fresh model takes"
    weights = drawn.state_dict()
    assert all(torch.equal(each, weights[name]) for name, each in model.state_dict().items())
    assert all(each.requires_grad for each in model.parameters())


def test_a_file_that_is_written_over_changes_no_model_that_is_loaded(folder):
    _, model, _ = load_model_folder(folder)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.write(b"\1" * path.stat().st_size)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


_PEAK = """
import sys
from pathlib import Path
from bert_core.model_folder import load_model_folder

def kilobytes(name):
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0])

before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
load_model_folder(sys.argv[1])
print(kilobytes("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from /proc")
def test_a_model_is_in_memory_once_while_it_is_read(tmp_path, tokenizer):
    config = ModelConfig(
        vocab_size=100, hidden_size=256, num_hidden_layers=24, num_attention_heads=4,
        intermediate_size=2048, max_position_embeddings=16,
    )  # fmt: skip
    model = Bert.for_pretraining(config)
    save_model_folder(tmp_path / "model", model, tokenizer, card="")
    size = (tmp_path / "model" / "model.safetensors").stat().st_size
    command = [sys.executable, "-c", _PEAK, str(tmp_path / "model")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) * 1024 < 1.7 * size, "a second copy is as much again"


@pytest.mark.parametrize("next_sentence", [True, False])
def test_transformers_loads_it(tmp_path, small_config, tokenizer, some_rows, next_sentence):
    ours = Bert.for_pretraining(small_config, next_sentence)
    save_model_folder(tmp_path / "model", ours, tokenizer, "# A card\n")
    kind = BertForPreTraining if next_sentence else BertForMaskedLM
    theirs, report = kind.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(report.values()), report
    rows = some_rows([12, 12])
    batch = rows.batch(packed=True)
    with torch.no_grad():
        states = ours.encoder(*batch.inputs)
        found = ours.heads["masked_token"](states, ours.encoder.word_embeddings)
        output = theirs.eval()(rows.input_ids, token_type_ids=rows.token_type_ids)
    expected = output.prediction_logits if next_sentence else output.logits
    torch.testing.assert_close(found.view_as(expected), expected, rtol=1e-4, atol=1e-5)


def test_a_decoder_stays_one_here_and_in_transformers(
    tmp_path, small_config, tokenizer, some_rows, folder
):
    assert json.loads((folder / "config.json").read_text())["is_decoder"] is False
    config = small_config.model_copy(update={"is_decoder": True})
    ours = Bert.for_pretraining(config)
    save_model_folder(tmp_path / "decoder", ours, tokenizer, "# A card\n")
    loaded_config, loaded, _ = load_model_folder(tmp_path / "decoder")
    assert loaded_config == config and list(loaded.heads) == ["next_token"]
    theirs, report = BertLMHeadModel.from_pretrained(tmp_path / "decoder", output_loading_info=True)
    assert not any(report.values()), report
    assert isinstance(AutoModelForCausalLM.from_pretrained(tmp_path / "decoder"), BertLMHeadModel)
    encoder = BertModel.from_pretrained(tmp_path / "decoder", add_pooling_layer=False).eval()
    rows = some_rows([12, 7])
    batch = rows.batch(packed=True)
    arguments = batch.inputs
    given = {"token_type_ids": rows.token_type_ids, "attention_mask": rows.real.long()}
    with torch.no_grad():
        states = loaded.eval().encoder(*arguments)
        logits = loaded.heads["next_token"](states, loaded.encoder.word_embeddings)
        expected = theirs.eval()(rows.input_ids, **given).logits[rows.real]
        last = encoder(rows.input_ids, **given).last_hidden_state[rows.real]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states, last, rtol=1e-4, atol=1e-5)


def test_transformers_reads_the_tokenizer(folder, tokenizer):
    theirs = AutoTokenizer.from_pretrained(folder)
    texts = ("Hëllo, wörld!", "a 中 bb [MASK]")
    assert theirs(*texts)["input_ids"] == tokenizer.encode(*texts).ids
    assert theirs(*texts)["token_type_ids"] == tokenizer.encode(*texts).type_ids
    assert theirs.model_max_length == 32
    assert (theirs.pad_token, theirs.mask_token) == ("[PAD]", "[MASK]")


def test_a_folder_of_theirs_loads_here(tmp_path, small_config, small_model, folder, some_rows):
    theirs = BertForPreTraining.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "theirs")
    shutil.copy(folder / "vocab.txt", tmp_path / "theirs")
    config, ours, _ = load_model_folder(tmp_path / "theirs")
    assert config == small_config
    rows = some_rows([9, 4])
    assert torch.equal(rows.loss(ours, packed=True)[0], rows.loss(small_model, packed=True)[0])


def test_an_encoder_alone_gets_fresh_heads(tmp_path, small_model, tokenizer):
    save_model_folder(tmp_path / "model", Bert(small_model.encoder, {}), tokenizer, "")
    _, model, _ = load_model_folder(tmp_path / "model")
    assert list(model.heads) == []
    assert model.add_missing_heads(HEADS) == list(HEADS)
    assert model.add_missing_heads(HEADS) == []


def test_fixed_positions_come_back_and_are_written_out_for_others(
    tmp_path, small_config, tokenizer, some_rows
):
    config = ModelConfig(**small_config.model_dump() | {"position_embedding": "sinusoidal"})
    ours = Bert.for_pretraining(config)
    save_model_folder(tmp_path / "model", ours, tokenizer, "")
    loaded_config, loaded, _ = load_model_folder(tmp_path / "model")
    assert loaded_config == config
    rows = some_rows([9, 4])
    loss = rows.loss(ours, packed=True)[0]
    assert torch.equal(rows.loss(loaded, packed=True)[0], loss)
    theirs = BertForPreTraining.from_pretrained(tmp_path / "model").eval()
    output = theirs(
        rows.input_ids,
        token_type_ids=rows.token_type_ids,
        attention_mask=rows.real.long(),
        labels=rows.labels,
        next_sentence_label=rows.next_sentence,
    )
    assert output.loss.item() == pytest.approx(loss.item(), rel=1e-5)


def test_replaces_what_stands_there(folder, small_config, tokenizer):
    other = Bert.for_pretraining(small_config, next_sentence=False)
    save_model_folder(folder, other, tokenizer, "# Another\n", extra_config={"finetuned": "no"})
    _, model, _ = load_model_folder(folder)
    assert list(model.heads) == ["masked_token"]
    assert json.loads((folder / "config.json").read_text())["finetuned"] == "no"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "README.md"]
)
def test_names_the_damaged_file(folder, name):
    path = folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelFolderError, match=name):
        load_model_folder(folder)
    path.unlink()
    with pytest.raises(
        ModelFolderError, match=name if name != "config.json" else "no model folder"
    ):
        load_model_folder(folder)


def test_names_damage_without_checksums(folder):
    (folder / "checksums").unlink()
    load_model_folder(folder)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelFolderError, match="model.safetensors"):
        load_model_folder(folder)
    weights.unlink()
    with pytest.raises(ModelFolderError, match="no weights"):
        load_model_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelFolderError, match=r"config\.json"):
        load_model_folder(folder)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "deberta"}, "model_type 'deberta'"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"vocab_size": 10}, "has the shape"),
        ({"num_hidden_layers": 4}, "no bert.encoder.layer"),
        ({"num_attention_heads": 7}, "damaged model configuration"),
    ],
)
def test_refuses_a_model_it_would_compute_wrongly(folder, changed, said):
    (folder / "checksums").unlink()
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ModelFolderError, match=said):
        load_model_folder(folder)


def test_refuses_a_tokenizer_with_more_words_than_the_model(tmp_path, tokenizer, small_config):
    config = small_config.model_copy(update={"vocab_size": 8})
    save_model_folder(tmp_path / "model", Bert.for_pretraining(config), tokenizer, "")
    with pytest.raises(ModelFolderError, match="16 words, the model 8"):
        load_model_folder(tmp_path / "model")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_refuses_weights_that_answer_no_numbers(tmp_path, small_model, tokenizer, value):
    small_model.encoder.layers[1].output.bias.data[0] = value
    save_model_folder(tmp_path / "model", small_model, tokenizer, "")
    with pytest.raises(ModelFolderError, match="layers.1.output.bias has values that"):
        load_model_folder(tmp_path / "model")


def test_refuses_weights_that_are_no_numbers_in_single_precision(folder):
    (folder / "checksums").unlink()
    weights = load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.1.output.dense.bias"
    weights[name] = torch.full_like(weights[name], 1e300, dtype=torch.float64)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelFolderError, match="layers.1.output.bias has values that"):
        load_model_folder(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_list_of_checksums_names_what_is_read(folder, name):
    path = folder / "checksums"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.endswith(f"  {name}\n")))
    with pytest.raises(ModelFolderError, match=f"incomplete list of .*checksums lacks {name}"):
        load_model_folder(folder)


@pytest.mark.parametrize("line", ["0  ../x", "0  /etc/passwd", "nothing", "0  a\\b", ""])
def test_a_list_of_checksums_names_files_of_the_folder(folder, line):
    with (folder / "checksums").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ModelFolderError, match="damaged list of checksums"):
        load_model_folder(folder)


@pytest.mark.parametrize(
    ("name", "has_checksums"),
    [
        *((name, True) for name in ("", "checksums", "tokenizer_config.json", "README.md")),
        *((name, False) for name in ("config.json", "tokenizer.json", "model.safetensors")),
    ],
)
def test_what_may_not_be_read_is_said_in_one_line(folder, open_folder, nobody, name, has_checksums):
    if not has_checksums:
        (folder / "checksums").unlink()
    shutil.copytree(folder, open_folder / "model")
    closed = open_folder / "model" / name
    closed.chmod(0)
    with nobody(), pytest.raises(UserError, match="Permission denied") as caught:
        load_model_folder(open_folder / "model")
    closed.chmod(0o755)
    assert str(closed) in str(caught.value)


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "\ud800", "missing", "a\n\x1b[31mb"])
def test_a_folder_that_cannot_be_is_refused(tmp_path, name):
    with pytest.raises(ModelFolderError) as caught:
        load_model_folder(tmp_path / name)
    assert str(caught.value).isprintable()


def test_a_configuration_that_leads_nowhere_is_said(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("gone")
    (folder / "checksums").unlink()
    with pytest.raises(ModelFolderError, match="cannot be read .No such file.*config.json"):
        load_model_folder(folder)


def test_a_list_of_checksums_that_leads_nowhere_is_no_absent_one(folder):
    (folder / "checksums").unlink()
    (folder / "checksums").symlink_to("gone")
    with pytest.raises(ModelFolderError, match="checksums"):
        load_model_folder(folder)


def test_links_are_followed_as_those_of_hugging_faces_cache(folder, small_config):
    for path in [*folder.iterdir()]:
        blob = folder.parent / f"blob-{path.name}"
        path.rename(blob)
        path.symlink_to(blob)
    assert load_model_folder(folder)[0] == small_config


TOKENIZER = wordpiece_tokenizer(
    {word: i for i, word in enumerate([*SPECIAL_TOKENS, "a"])}, lowercase=True
)
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "ctypes.dlsym")
KILLED = 9


def model_of(value):
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 2}
    model = Bert.for_pretraining(
        ModelConfig(vocab_size=6, hidden_size=2, max_position_embeddings=4, **sizes)
    )
    with torch.no_grad():
        model.encoder.word_embeddings.fill_(value)
    return model


def save(folder, value):
    save_model_folder(folder, model_of(value), TOKENIZER, f"{value}")


def value_in(folder):
    """Of a folder that is whole, and of one save."""
    _, model, _ = load_model_folder(folder)
    value = int(model.encoder.word_embeddings[0, 0])
    assert (folder / "README.md").read_text() == f"{value}"
    return value


def call_at_step(number, action):
    """Has a process call `action` before its `number`th step that changes the disk."""
    count = 0

    def watch(event, arguments):
        nonlocal count
        changes = event == "open" and isinstance(arguments[2], int)
        changes = changes and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if changes or event in CHANGES:
            count += 1
            if count == number:
                action()

    sys.addaudithook(watch)


def in_a_child(work):
    """The exit code of a forked process; a hook of it cannot be taken away."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except UserError:
            code = 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def steps(request, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no power is cut here
    if request.param == "in two steps":  # as on a file system that knows no exchange
        monkeypatch.setattr(disk, "exchange", lambda *_: False)


@pytest.fixture
def copy_of_first(tmp_path):
    """Makes folders with a first model, next to nothing."""
    torch.set_num_threads(1)
    save(tmp_path / "first", 1)
    return lambda name: Path(shutil.copytree(tmp_path / "first", tmp_path / name / "model"))


BOTH = pytest.mark.parametrize("steps", ["at once", "in two steps"], indirect=True)


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("steps", "is_first"),
    [("at once", False), ("in two steps", False), ("at once", True)],
    indirect=["steps"],
)
def test_a_kill_at_any_step_leaves_a_whole_folder(tmp_path, steps, copy_of_first, is_first):
    seen = set()
    for number in range(1, 200):
        folder = tmp_path / str(number) / "model" if is_first else copy_of_first(str(number))

        def killed(folder=folder, number=number):
            call_at_step(number, lambda: os._exit(KILLED))
            save(folder, 2)

        code = in_a_child(killed)
        assert code in (0, KILLED)
        try:
            seen.add(value_in(folder))
        except UserError:
            assert is_first
            seen.add(None)
        save(folder, 3)
        assert value_in(folder) == 3
        assert [each.name for each in folder.parent.iterdir()] == ["model"]
        if code == 0:
            break
    assert number > 12  # else no kill fell into the save
    assert seen == ({None, 2} if is_first else {1, 2})


@pytest.mark.some(1)
@BOTH
def test_a_save_after_a_kill_that_is_killed_too(steps, copy_of_first):
    for first, second in product((8, 12, 16), (1, 12)):
        folder = copy_of_first(f"{first}-{second}")
        for number, value in ((first, 2), (second, 3)):

            def killed(number=number, value=value, folder=folder):
                call_at_step(number, lambda: os._exit(KILLED))
                save(folder, value)

            in_a_child(killed)
        assert value_in(folder) in (1, 2, 3)


@pytest.mark.slow
@BOTH
def test_an_error_at_any_step_leaves_a_whole_folder_and_nothing_beside_it(steps, copy_of_first):
    failures = 0

    def fail():
        raise OSError(errno.ENOSPC, "No space left on device")

    for number in range(1, 25):
        folder = copy_of_first(str(number))

        def failing(folder=folder, number=number):
            call_at_step(number, fail)
            save(folder, 2)

        code = in_a_child(failing)
        assert code in (0, 2)
        assert value_in(folder) in (1, 2)
        save(folder, 3)
        assert [each.name for each in folder.parent.iterdir()] == ["model"]
        failures += code == 2
    assert failures > 10  # else no error fell into the save


def test_readers_see_one_model_or_the_other(tmp_path):
    folder, ended, found = tmp_path / "model", threading.Event(), []
    save(folder, 1)

    def read():
        while not ended.is_set():
            try:
                _, model, _ = load_model_folder(folder)
                found.append(int(model.encoder.word_embeddings[0, 0]))
            except BaseException as error:  # noqa: BLE001 - it is to be seen outside the thread
                found.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for value in range(2, 20):
        save(folder, value)
        time.sleep(0.01)
    ended.set()
    reader.join()
    assert found
    assert [each for each in found if not isinstance(each, int)] == []


WHOLE = Lineage(
    run="mini-1a2b3c4d",
    run_id="0f" * 16,
    data_sha256="ab" * 32,
    git_commit="c0" * 20,
    git_dirty=False,
    metrics={"dev/f1": 0.1 + 0.2},
)


@pytest.fixture
def folder_with_lineage(tmp_path, small_model):
    tokenizer = train_wordpiece(["the cat sat"] * 3, 60, lowercase=True)
    save_model_folder(tmp_path / "model", small_model, tokenizer, "# A card\n", lineage=WHOLE)
    return tmp_path / "model"


def test_it_comes_back_and_transformers_does_not_mind(folder_with_lineage):
    load_model_folder(folder_with_lineage)
    assert read_lineage(folder_with_lineage) == WHOLE
    assert json.loads((folder_with_lineage / "lineage.json").read_text())["run"] == "mini-1a2b3c4d"
    _, report = BertForPreTraining.from_pretrained(folder_with_lineage, output_loading_info=True)
    assert not any(report.values()), report


def test_a_changed_one_is_damage(folder_with_lineage):
    path = folder_with_lineage / "lineage.json"
    path.write_text(path.read_text().replace("abab", "cdcd"))
    with pytest.raises(ModelFolderError, match=r"damaged.*lineage\.json"):
        load_model_folder(folder_with_lineage)


@pytest.mark.parametrize("content", [None, "no JSON", '["another", "program"]', '{"run": 3}'])
def test_a_folder_that_says_nothing_known(tmp_path, content):
    if content is not None:
        (tmp_path / "lineage.json").write_text(content)
    assert read_lineage(tmp_path) is None


def test_what_only_another_says_is_added():
    folder_with_lineage = Lineage(run="mini", data_sha256="ab", metrics={"dev/f1": 0.25})
    registry = Lineage(run_id="1", data_sha256="cd", git_dirty=False, metrics={"dev/f1": 0.3})
    assert folder_with_lineage.completed(registry) == Lineage(
        run="mini", run_id="1", data_sha256="ab", git_dirty=False, metrics={"dev/f1": 0.25}
    )


def test_a_list_of_words_is_written_where_the_tokens_are_all_that_a_tokenizer_has(tmp_path):
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, "cat"])}
    kinds = {
        "words": Tokenizer(WordLevel(vocabulary, unk_token="[UNK]")),
        "pieces": wordpiece_tokenizer(vocabulary, lowercase=True),
        "bytes": train_tokenizer("bpe", ["a cat sat"] * 3, 300, lowercase=True),
    }
    for name, tokenizer in kinds.items():
        (tmp_path / name).mkdir()
        write_tokenizer(tmp_path / name, tokenizer, ModelConfig())
        assert (tmp_path / name / "tokenizer.json").is_file()
    written = [name for name in kinds if (tmp_path / name / "vocab.txt").is_file()]
    assert written == ["words", "pieces"]
