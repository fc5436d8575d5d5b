import hashlib
import json

import torch
from finetuning_runs import write_encoder

from bert_core.lineage import Lineage
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tokenizer import tokenizer_hash
from workflows.finetuning.data import open_encoder
from workflows.registry import content_hash
from workflows.reproduction.code_files import CodeState
from workflows.reproduction.run_origin import encoder_tags, origin_tags, write_origin, write_outcome
from workflows.tracking.tracker import without_machine_paths
from workflows.training.job import begin, tracked_run, write_settings


def artifact(job, name):
    return json.loads((job.folder.path / "artifacts" / name).read_text())


def test_a_run_writes_down_what_it_is_made_of(pretraining_job):
    folder = pretraining_job.folder
    write_settings(pretraining_job.settings, folder, "made of")
    assert origin_tags(folder).keys() == {"settings.sha256"}
    write_origin(pretraining_job, trains=False)
    assert not (folder.path / "artifacts" / "code.json").exists(), "it was trained by other code"
    write_origin(pretraining_job, trains=True)
    tags = tracked_run(pretraining_job).tags
    settings = (folder.path / "artifacts" / "settings.yaml").read_bytes()
    assert tags["settings.sha256"] == hashlib.sha256(settings).hexdigest()
    assert tags["code.sha256"] == CodeState.now().sha256
    described = artifact(pretraining_job, "data.json")
    assert described["sha256"] == tags["data.sha256"]
    assert described["tokenizer_sha256"] == tags["tokenizer.sha256"]


def test_a_run_that_trains_no_more_keeps_its_code(pretraining_job):
    begin(pretraining_job)
    path = pretraining_job.folder.path / "artifacts" / "code.json"
    states = json.loads(path.read_text())
    states[0]["files"] = {"bert_core/gone.py": "0" * 64}
    path.write_text(json.dumps(states))
    begin(pretraining_job, trains=False)
    assert json.loads(path.read_text()) == states
    begin(pretraining_job)
    assert len(json.loads(path.read_text())) == 2, "it went on under other code"


def test_what_it_came_to_and_what_has_computed_it(finetuning_job):
    finetuning_job.write_results()
    write_outcome(finetuning_job)
    outcome = artifact(finetuning_job, "outcome.json")
    weights = (finetuning_job.folder.model / "model.safetensors").read_bytes()
    assert outcome["weights_sha256"] == hashlib.sha256(weights).hexdigest()
    assert (outcome["device"], outcome["num_threads"], outcome["world_size"]) == ("cpu", 1, 1)
    assert torch.backends.cpu.get_cpu_capability() in outcome["processor"]
    assert outcome["steps"] == 36
    text = json.dumps(outcome)
    assert without_machine_paths(text) == text


def test_the_encoder_is_told_by_content_and_by_the_run_that_made_it(tmp_path):
    folder = write_encoder(tmp_path / "mini")
    encoder = open_encoder(str(folder), tmp_path, "sqlite://")
    tags = encoder_tags(encoder)
    assert tags == {
        "encoder.name": "mini",
        "encoder.sha256": encoder.sha256,
        "encoder.content_sha256": content_hash(folder),
        "tokenizer.sha256": tokenizer_hash(encoder.tokenizer),
    }
    _, model, tokenizer = load_model_folder(folder)
    lineage = Lineage(run="mini-1a2b", run_id="f" * 32)
    save_model_folder(tmp_path / "made", model, tokenizer, "", lineage=lineage)
    tags = encoder_tags(open_encoder(str(tmp_path / "made"), tmp_path, "sqlite://"))
    assert (tags["encoder.run"], tags["encoder.run_id"]) == ("mini-1a2b", "f" * 32)
    (folder / "checksums").unlink()
    (folder / "tokenizer.json").unlink()
    # A folder of transformers with a vocab.txt alone is no content of the registry's.
    assert "encoder.content_sha256" not in encoder_tags(encoder)
