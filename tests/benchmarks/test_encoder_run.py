"""The command that trains an encoder in minutes: kill and resume, pieces, picture, recipe."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from encoder_corpus import write_all
from small_tasks import write_encoder
from synthetic_shards import synthetic_shards, vocabulary

from benchmarks.encoder_run import __main__ as encoder_run
from benchmarks.encoder_run import recipe as encoder_clock
from benchmarks.encoder_run.__main__ import join_pieces, write_pieces
from benchmarks.encoder_run.recipe import RECIPES, Clock, chosen_recipe
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder
from bert_core.tokenizer import tokenizer_hash

BARE_MACHINE = Path(__file__).parent / "bare_machine.py"
OPTIONS = (
    "--preset tiny --step_slots 128 --sequence_length 32 --steps 40 --heldout_rows 32 --epochs 2 "
    "--examples 16 --threads 1"
)
OF_TIME = {"seconds", "evaluation_seconds"}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("text"))


@pytest.fixture(autouse=True)
def as_before():
    """The command sets these for its process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


def command(places, folder, *words):
    shards, glue = places
    options = {"shards": shards, "glue": glue, "out": folder / "out", "json": folder / "run.json"}
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return [*OPTIONS.split(), *given, *map(str, words)]


def results_in(folder):
    return json.loads((folder / "run.json").read_text())


def without_times(found):
    if isinstance(found, dict):
        return {name: without_times(v) for name, v in found.items() if name not in OF_TIME}
    return [without_times(each) for each in found] if isinstance(found, list) else found


def start_bare(arguments, folder):
    """The command as a process on a machine that has little installed."""
    lines = json.dumps([["benchmarks.encoder_run", *arguments]])
    root = str(Path(encoder_run.__file__).parents[2])
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(BARE_MACHINE), lines],
            env=os.environ | {"PYTHONPATH": root, "PYTHONUNBUFFERED": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


@pytest.mark.slow
def test_killed_on_a_bare_machine_it_comes_to_the_same(places, tmp_path):
    """Without Ray, MLflow, Arrow, scikit-learn and whatever else a GPU's machine lacks."""
    bare = tmp_path / "bare"
    bare.mkdir()
    arguments = command(places, bare, "--checkpoint_minutes", 0)
    killed = start_bare(arguments, bare)
    end = time.monotonic() + 120
    while not list((bare / "out" / "checkpoints").glob("step-0000001?")):
        assert killed.poll() is None and time.monotonic() < end, (bare / "log").read_text()
        time.sleep(0.005)
    killed.kill()
    killed.wait()
    assert results_in(bare)["pretraining"]["step"] < 40
    assert start_bare(arguments, bare).wait(240) == 0, (bare / "log").read_text()
    log = (bare / "log").read_text()
    assert "resuming from step 1" in log and "mrpc: f1" in log
    whole = tmp_path / "whole"
    assert encoder_run.main(command(places, whole)) == 0
    found, expected = without_times(results_in(bare)), without_times(results_in(whole))
    found.pop("surroundings"), expected.pop("surroundings")
    assert found == expected
    assert not (bare / "out" / "checkpoints").exists()
    weights = [
        load_model_folder(each / "out" / "encoder")[1].state_dict() for each in (bare, whole)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
def test_a_finished_run_is_not_repeated_and_takes_more_seeds(places, tmp_path, monkeypatch):
    assert encoder_run.main(command(places, tmp_path, "--tasks", "sst2")) == 0
    before = results_in(tmp_path)
    monkeypatch.setattr(encoder_run, "Pretraining", None)
    assert encoder_run.main(command(places, tmp_path, "--tasks", "sst2", "--seeds", 0, 1)) == 0
    after = results_in(tmp_path)
    assert after["pretraining"] == before["pretraining"]
    for arm, (first, *more) in after["finetuning"]["sst2"]["arms"].items():
        assert [first] == before["finetuning"]["sst2"]["arms"][arm]
        assert [each["seed"] for each in more] == [1]


@pytest.mark.slow
def test_a_call_that_is_out_of_time_says_so(places, tmp_path, capsys):
    assert encoder_run.main(command(places, tmp_path, "--minutes", 0)) == 130
    assert "out of time" in capsys.readouterr().out
    assert results_in(tmp_path)["pretraining"]["step"] == 1
    calls = 0
    while encoder_run.main(command(places, tmp_path, "--minutes", 0.02)) != 0:
        calls += 1
        assert calls < 60
    assert {name: len(stage["arms"]) for name, stage in results_in(tmp_path)["finetuning"].items()}


@pytest.mark.slow
def test_the_encoder_comes_in_pieces_from_another_machine(places, tmp_path):
    pieces = ("--pieces", tmp_path / "pieces", "--tasks", "mrpc")
    words = command(places, tmp_path, *pieces)
    assert encoder_run.main([*words, "--seeds", "0"]) == 0
    (tmp_path / "out").rename(tmp_path / "left_behind")
    assert encoder_run.main([*words, "--seeds", "1"]) == 0
    found = results_in(tmp_path)
    assert found["encoder_was_rounded_to"] == "float16"
    assert [each["seed"] for each in found["finetuning"]["mrpc"]["arms"]["untrained"]] == [0, 1]


@pytest.mark.slow
def test_an_encoder_that_is_gone(places, tmp_path):
    words = command(places, tmp_path, "--tasks", "mrpc")
    assert encoder_run.main(words) == 0
    (tmp_path / "out").rename(tmp_path / "left_behind")
    with pytest.raises(UserError, match="its encoder is not here"):
        encoder_run.main([*words, "--seeds", "1"])


def test_results_of_other_settings_are_left_alone(places, tmp_path):
    encoder_run.main(command(places, tmp_path, "--minutes", 0))
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(UserError, match="results of other settings"):
        encoder_run.main(command(places, tmp_path, "--peak_learning_rate", 0.1))
    assert (tmp_path / "run.json").read_bytes() == before


def test_no_path_of_this_machine_is_in_the_results(places, tmp_path):
    encoder_run.main(command(places, tmp_path, "--minutes", 0))
    assert str(tmp_path) not in (tmp_path / "run.json").read_text()


def test_a_gpu_that_is_not_there(places, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no GPU"):
        encoder_run.main(command(places, tmp_path, "--device", "cuda"))


def test_what_is_needed_to_train(capsys):
    with pytest.raises(SystemExit):
        encoder_run.main(["--json", "run.json", "--shards", "shards"])
    assert "--glue is needed" in capsys.readouterr().err


def test_the_picture_is_drawn_from_results(places, tmp_path):
    encoder_run.main(command(places, tmp_path, "--minutes", 0))
    words = ["--json", str(tmp_path / "run.json"), "--plot", str(tmp_path / "picture.svg")]
    assert encoder_run.main(words) == 0
    assert (tmp_path / "picture.svg").read_text().startswith("<?xml")


def test_packed_steps_are_full_micro_batches_of_one_shape():
    """So the program that is compiled is one, and computes hardly any padding."""
    recipe, shards = replace(RECIPES["small"], step_slots=16_384), synthetic_shards()
    batch = recipe.batch(packed=True)
    source = recipe.source(shards, vocabulary(), batch=batch, static=True)
    shapes, slots, tokens, rows = set(), [], 0, 0
    for step in range(0, 40, 4):
        batches = source.step(step)
        rows += batches.num_rows
        for each in batches.micro_batches:
            shapes.add((each.input_ids.shape, each.masked_ids.shape, each.next_sentence.shape))
            slots.append(each.num_slots)
            tokens += each.num_real_tokens
    assert tokens > 0.97 * sum(slots)
    assert len(shapes) == 1
    assert 0.7 * 16_384 < sum(slots) / 10 <= 16_384
    assert rows / 10 == pytest.approx(128, rel=0.1)


def test_elsewhere_a_step_has_as_many_rows_as_would_fill_it():
    recipe, shards = replace(RECIPES["small"], step_slots=65_536), synthetic_shards()
    batch = recipe.batch(packed=False)
    assert batch.global_batch_size == 65_536 // 128 and not batch.packed
    source = recipe.source(shards, vocabulary(), batch=batch, static=False)
    sizes = [each.num_slots for each in source.step(0).micro_batches]
    assert len(sizes) == 8 and max(sizes) <= 64 * 128


@pytest.mark.some(1)
@pytest.mark.parametrize(("preset", "millions"), [("tiny", 4), ("small", 28), ("base", 109)])
def test_the_encoder_has_the_size_of_its_name(preset, millions):
    config = RECIPES[preset].architecture(vocabulary())
    assert config.attention_probs_dropout_prob == 0  # the packed attention of CUDA has none
    if preset != "base":  # half a gigabyte
        parameters = sum(
            parameter.numel() for parameter in Bert.for_pretraining(config).parameters()
        )
        assert parameters / 1e6 == pytest.approx(millions, abs=1)
    else:
        assert (config.num_hidden_layers, config.hidden_size) == (12, 768)


def test_what_is_not_given_stays():
    changed = chosen_recipe("mini", {"peak_learning_rate": 5e-4, "step_slots": None})
    assert changed == replace(RECIPES["mini"], peak_learning_rate=5e-4)


@pytest.fixture
def now(monkeypatch):
    """The time, in a list of one number."""
    time = [1000.0]
    monkeypatch.setattr(encoder_clock.time, "monotonic", lambda: time[0])
    return time


def test_pretraining_has_its_part_of_the_time(now):
    clock = Clock(9, 6)
    now[0] += 60
    assert clock.pretraining_seconds() == 300 and not clock.is_over()
    now[0] += 8 * 60
    assert clock.is_over()


def test_pretraining_has_no_more_than_there_is(now):
    assert Clock(2, 6).pretraining_seconds() == 120


def test_lines_come_now_and_then(now, capsys):
    clock = Clock(9, 6)
    for text in ("one", "two", "three"):
        now[0] += 3
        clock.say(text)
    assert capsys.readouterr().out == "  0.1 min  one\n  0.1 min  three\n"


def results():
    heldout = [
        {"tokens": tokens, "masked_token_loss": loss, "unigram_loss": 7.0}
        for tokens, loss in ((0, 9.1), (4e6, 6.5), (8e6, 5.25))
    ]
    curve = [{"tokens": n * 1e6, "masked_token_loss": 9 - n / 2} for n in range(1, 9)]
    return {
        "settings": {"recipe": {"size": "small"}},
        "surroundings": {"device": "NVIDIA H200"},
        "pretraining": {"seconds": 390.0, "curve": curve, "heldout": heldout},
    }


def test_what_is_drawn(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "workflows.reporting.figures.save_picture", lambda figure, _: drawn.append(figure)
    )
    encoder_run.draw(results(), tmp_path / "picture.svg")
    (axes,) = drawn[0].axes
    training, heldout, unigram = axes.lines
    assert training.get_xydata()[0].tolist() == [1.0, 8.5]
    assert heldout.get_xydata().tolist() == [[0.0, 9.1], [4.0, 6.5], [8.0, 5.25]]
    assert set(unigram.get_ydata()) == {7.0}
    assert [text.get_text() for text in axes.texts] == ["5.25"]
    low, high = axes.get_ylim()
    assert low < 5.0 and 7.0 < high < 9.1
    assert axes.get_title(loc="left") == "6.5 minutes of pre-training, small, NVIDIA H200"


@pytest.fixture
def encoder(tmp_path):
    return write_encoder(tmp_path / "encoder")


def test_an_encoder_travels_in_small_files(encoder, tmp_path):
    paths = write_pieces(encoder, tmp_path / "pieces", 20_000)
    sizes = [path.stat().st_size for path in paths]
    assert len(paths) > 2 and max(sizes) <= 20_000
    assert sum(sizes) < 0.6 * sum(path.stat().st_size for path in encoder.iterdir())
    assert join_pieces(tmp_path / "pieces", tmp_path / "joined")
    config, model, tokenizer = load_model_folder(encoder)
    joined_config, joined, joined_tokenizer = load_model_folder(tmp_path / "joined")
    assert joined_config == config
    assert tokenizer_hash(joined_tokenizer) == tokenizer_hash(tokenizer)
    weights = model.state_dict()
    for name, weight in joined.state_dict().items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, weights[name].half().float()), name


def test_pieces_are_put_together_in_their_order(encoder, tmp_path):
    assert len(write_pieces(encoder, tmp_path / "pieces", 3_000)) > 10
    assert join_pieces(tmp_path / "pieces", tmp_path / "joined")


def test_no_pieces(tmp_path):
    assert not join_pieces(tmp_path, tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_piece_is_missing(encoder, tmp_path, place):
    write_pieces(encoder, tmp_path / "pieces", 20_000)[place].unlink()
    with pytest.raises(UserError, match="damaged or missing pieces"):
        join_pieces(tmp_path / "pieces", tmp_path / "joined")


def test_a_piece_is_damaged(encoder, tmp_path):
    path = write_pieces(encoder, tmp_path / "pieces", 20_000)[1]
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged or missing pieces"):
        join_pieces(tmp_path / "pieces", tmp_path / "joined")


def test_pieces_of_an_encoder_take_the_place_of_others(encoder, tmp_path):
    write_pieces(encoder, tmp_path / "pieces", 5_000)
    write_pieces(write_encoder(tmp_path / "deeper", layers=2), tmp_path / "pieces", 20_000)
    assert join_pieces(tmp_path / "pieces", tmp_path / "joined")
    assert load_model_folder(tmp_path / "joined")[0].num_hidden_layers == 2
