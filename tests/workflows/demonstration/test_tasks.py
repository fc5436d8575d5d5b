"""What the demo compares: the same but for what the encoder has learned; without Ray."""

import pytest
import torch
from finetuning_runs import arguments, write_task
from pretraining_runs import Channel

from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tokenizer import load_tokenizer
from workflows.cluster import Worker
from workflows.demo import DemoSettings
from workflows.demonstration.tasks import LEARNED, finetune_settings, untrained_encoder
from workflows.finetune import parse
from workflows.finetuning.worker import finetuning_parts
from workflows.pretraining.worker import pretraining_parts
from workflows.settings import parse_command_line


@pytest.fixture
def pretrained(finished_pretraining, tmp_path):
    """An encoder that has learned, and the weights that it began with."""
    settings, _, shards = finished_pretraining
    worker = Worker(0, 1, torch.device("cpu"), Channel())
    model = pretraining_parts(settings, shards.folder, worker, tmp_path).state.model
    began_with = {name: each.clone() for name, each in model.state_dict().items()}
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn_like(each), alpha=0.1)
    save_model_folder(tmp_path / "pretrained", model, load_tokenizer(shards.folder), card="")
    return tmp_path / "pretrained", began_with


def test_the_untrained_encoder_is_what_the_pretraining_began_with(pretrained, tmp_path):
    path, began_with = pretrained
    folder = untrained_encoder(path, tmp_path / "untrained")
    written = (folder / "model.safetensors").stat().st_mtime_ns
    (config, model, tokenizer), other = load_model_folder(folder), load_model_folder(path)
    assert config == other[0] and tokenizer.to_str() == other[2].to_str()
    weights = model.state_dict()
    assert weights.keys() == began_with.keys()
    assert all(torch.equal(weights[name], began_with[name]) for name in weights)
    untrained_encoder(path, folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_both_begin_with_the_same_head(pretrained, tmp_path):
    path, _ = pretrained
    write_task(tmp_path / "data")
    untrained = untrained_encoder(path, tmp_path / "untrained")
    heads = []
    for encoder in (path, untrained):
        settings = parse(arguments(tmp_path, model=encoder))
        worker = Worker(0, 1, torch.device("cpu"), Channel())
        parts = finetuning_parts(settings, encoder, worker, tmp_path / "run")
        heads.append(parts.state.model.state_dict())
    same = {name for name in heads[0] if torch.equal(heads[0][name], heads[1][name])}
    assert same == {"heads.classifier.linear.weight", "heads.classifier.linear.bias"}


def test_all_runs_have_the_same_settings_but_for_task_and_encoder(tmp_path):
    settings = parse_command_line(
        DemoSettings, ["--storage", str(tmp_path), "--max_examples", "300", "--fresh"]
    )
    made = [finetune_settings(settings, task, tmp_path / "encoder") for task in LEARNED]
    assert [each.task for each in made] == list(LEARNED)
    assert {each.options.model_dump()["max_examples"] for each in made} == {300}
    assert all(each.fresh and each.storage == str(tmp_path) for each in made)
    shared = [each.model_dump(exclude={"task", "options"}) for each in made]
    assert shared[0] == shared[1] == shared[2]
