"""The demo: its command, what it compares, and, at length, kills with a real Ray cluster."""

import re
import time

import pytest
import torch
from finetuning_runs import Demo, arguments, write_encoder, write_task
from finished_demos import QUESTIONS
from pretraining_runs import Channel, writer_of

from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tokenizer import load_tokenizer
from workflows.clusters.workers import Worker
from workflows.demo import (
    LEARNED,
    DemoSettings,
    demo_folder,
    finetune_settings,
    main,
    untrained_encoder,
)
from workflows.demonstration.questions import write_questions
from workflows.finetune import parse
from workflows.finetuning.worker import finetuning_parts
from workflows.pretraining.worker import pretraining_parts
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line


def test_a_finished_demo_prints_its_table_at_once(tmp_path, capsys):
    (tmp_path / "runs" / "mine" / "model").mkdir(parents=True)
    arguments = ["--storage", str(tmp_path), "--model", "mine", "--serve", "no"]
    settings = parse_command_line(DemoSettings, arguments)
    folder = demo_folder(settings, open_storage(settings.storage), "mine")
    folder.mkdir(parents=True)
    (folder / "table.txt").write_text("the table\n")
    write_questions(QUESTIONS, folder)
    assert main(arguments) == 0
    assert "the table" in capsys.readouterr().out
    for more, part in (
        (["--model", "nobody"], "no such model: nobody"),
        (["--max_examples", "500"], "no model folder"),  # another demo, which reads the model
        (["--fresh"], "no model folder"),
    ):
        assert main([*arguments, *more]) == 2
        assert part in capsys.readouterr().err
    assert not (folder / "table.txt").exists(), "it starts over"


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_killed_it_goes_on_and_shows_six_runs_in_a_table(tmp_path, ray_cluster):
    write_encoder(tmp_path / "encoder", positions=128)
    demo = Demo(tmp_path / "storage", "demo", tmp_path, 0, {}, {"RAY_ADDRESS": ray_cluster})
    driver = demo.start()
    driver.until(lambda: demo.newest("docs_library-untrained").step() >= 3, 600)
    second = demo.newest("docs_library-untrained")
    writer_of(second).kill()
    driver.until(lambda: demo.newest("docs_parameters-pretrained").step() >= 2, 600)
    driver.kill()
    first = demo.newest("docs_library-pretrained")
    finished = (first.folder / "summary.txt").stat().st_mtime_ns
    output = demo.finish(seconds=900)
    assert "6 of 6 docs_answers untrained  finished: " in output
    assert "docs_library pretrained" not in output, "it was finished before"
    assert (first.folder / "summary.txt").stat().st_mtime_ns == finished
    for name in ("docs_library  accuracy", "docs_parameters  f1", "docs_answers  f1"):
        assert re.search(name.replace("  ", " +"), output), output
    for name in ("comparison.png", "report.md"):
        assert len(list(demo.storage.glob(f"demo/encoder-*/{name}"))) == 1
    begin = time.monotonic()
    again = demo.finish()
    table, _, _ = output[output.index("task  ") :].partition("serving  ")
    assert again.startswith(table)
    asked = [re.findall(r"^(/\S+) +[\d.]+  ", text, re.MULTILINE) for text in (again, output)]
    assert asked[0] == asked[1] and {"/v1/classify", "/v1/ner", "/v1/qa"} < {*asked[0]}
    print(f"a finished demo takes {time.monotonic() - begin:.1f} s")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_an_encoder_is_adapted_compared_with_itself_and_served(tmp_path, ray_cluster):
    write_encoder(tmp_path / "encoder", positions=128)
    settings, environment = {"encoder_as": "start_from"}, {"RAY_ADDRESS": ray_cluster}
    demo = Demo(tmp_path / "storage", "demo", tmp_path, 0, settings, environment)
    output = demo.finish(seconds=900)
    assert "bits a byte  this text" in output
    assert re.search("task +metric +start model +adapted +difference", output)
    assert re.search("^/v1/fill-mask +", output, re.MULTILINE)
    again = demo.finish()
    assert output[output.index("task  ") :].partition("serving  ")[0] in again


def test_a_model_is_used_or_adapted(capsys):
    assert main(["--model", "mine", "--start_from", "mine"]) == 2
    assert "give one of them" in capsys.readouterr().err


@pytest.fixture
def pretrained(finished_pretraining, tmp_path):
    """An encoder that has learned, and the weights that it began with."""
    settings, _, shards = finished_pretraining
    worker = Worker(0, 1, torch.device("cpu"), Channel())
    model = pretraining_parts(settings, shards.folder, worker, tmp_path).state.model
    began_with = {name: parameter.clone() for name, parameter in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
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
        run = finetuning_parts(settings, encoder, worker, tmp_path / "run")
        heads.append(run.state.model.state_dict())
    same = {name for name in heads[0] if torch.equal(heads[0][name], heads[1][name])}
    assert same == {"heads.classifier.linear.weight", "heads.classifier.linear.bias"}


def test_all_runs_have_the_same_settings_but_for_task_and_encoder(tmp_path):
    settings = parse_command_line(
        DemoSettings, ["--storage", str(tmp_path), "--max_examples", "300", "--fresh"]
    )
    made = [finetune_settings(settings, task, tmp_path / "encoder", 128) for task in LEARNED]
    assert [each.task for each in made] == list(LEARNED)
    assert {each.options.model_dump()["max_examples"] for each in made} == {300}
    assert all(each.fresh and each.storage == str(tmp_path) for each in made)
    assert made[0].optimizer.peak_learning_rate == 1e-3
    shared = [each.model_dump(exclude={"task", "options"}) for each in made]
    assert shared[0] == shared[1] == shared[2]
