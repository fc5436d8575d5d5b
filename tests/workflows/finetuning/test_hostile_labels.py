"""Labels of any characters from the data to the model folder, its card, report and settings."""

import json

import pytest
import yaml
from finetuning_runs import WORDS, finetune_here, write_encoder
from hostile_labels import HOSTILE_LABELS

from bert_core.example import read_example
from bert_core.predictor import load_predictor
from bert_core.tasks.label_values import label_of
from workflows.finetune import announce, parse
from workflows.finetuning.data import open_encoder, read_task_data
from workflows.finetuning.job import FinetuningJob
from workflows.runs.storage import open_storage
from workflows.training.job import begin

MISSING = {"nan", "None", "null", "-"}
"""What a reader of classes may take for no answer, or for annotators who did not agree."""
CLASSES = tuple(each for each in HOSTILE_LABELS if each not in MISSING)


def write_classes(folder, kind):
    folder.mkdir()
    rows = [
        {"text": " ".join(WORDS[number % 7 :]), "label": [label] if kind == "multiple" else label}
        for number, label in enumerate(CLASSES * 2)
    ]
    for split in ("train", "dev"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
@pytest.mark.parametrize("kind", ["single", "multiple"])
def test_classes_of_any_characters_are_learned_and_reported(tmp_path, kind, capsys):
    write_classes(tmp_path / "data", kind)
    write_encoder(tmp_path / "encoder")
    run, _, _ = finetune_here(tmp_path, options__kind=kind, epochs=1)
    encoder = open_encoder(run.parts.settings.model, tmp_path, "sqlite://")
    data = read_task_data(run.parts.settings, encoder.tokenizer)
    read = {stripped for each in CLASSES if (stripped := label_of(each))}
    assert set(data.task.labels) == read
    job = FinetuningJob(run.parts.settings, open_storage(str(tmp_path)), run.folder, encoder, data)
    announce(job)
    announced = capsys.readouterr().out
    assert all(each.isprintable() for each in announced.splitlines())
    begin(job)
    results = job.write_results()
    assert all(each.isprintable() for each in results.lines)
    assert "<script>" not in results.card and "\n# C" not in results.card
    predictor = load_predictor(run.folder.model)
    assert predictor.task.labels == data.task.labels
    assert read_example(run.folder.model) is not None
    report = run.folder.path / "artifacts" / "dev" / "report.json"
    classes = json.loads(report.read_text(encoding="utf-8"))["classes"]
    assert {each["name"] for each in classes} == read


def test_labels_of_any_characters_stand_in_a_settings_file(tmp_path):
    given = {"task": "classification", "data": "d", "model": "m"}
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(given | {"options": {"labels": list(HOSTILE_LABELS)}}))
    settings = parse(["--preset", str(path)])
    assert settings.options.labels == HOSTILE_LABELS
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(settings.portable() | {"data": "d", "model": "m"}))
    assert parse(["--preset", str(again)]).options.labels == HOSTILE_LABELS
