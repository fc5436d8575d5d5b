"""The fine-tuning worker in this process, without Ray: learning, going on, the best epoch."""

import json
import random
from types import SimpleNamespace

import pytest
import torch
from finetuning_runs import WORDS, finetune_here, write_encoder, write_task
from safetensors.torch import load_file

from bert_core.config import ModernConfig
from bert_core.model_folder import load_model_folder
from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint
from bert_core.training.loop import NonFiniteLossError
from workflows.finetuning.results import ended_early
from workflows.finetuning.worker import BEST_PREDICTIONS, BEST_WEIGHTS
from workflows.messages import Outcome
from workflows.runs.journal import read_records


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    storage = tmp_path_factory.mktemp("storage")
    write_task(storage / "data")
    write_encoder(storage / "encoder")
    return storage


def records(run):
    return [
        (record.step, record.metrics) for record in read_records(run.folder.path / "journal.jsonl")
    ]


@pytest.fixture(scope="module")
def whole(storage):
    return finetune_here(storage, name="whole", checkpoint__every_steps=5)


def test_it_learns_and_measures_after_each_epoch(whole):
    run, outcome, _ = whole
    assert outcome == Outcome(36, stopped=False)
    measured = [(step, each) for step, each in records(run) if "dev/loss" in each]
    assert [(step, each["dev/epoch"]) for step, each in measured] == [(12, 1), (24, 2), (36, 3)]
    assert measured[-1][1]["dev/accuracy"] > 0.9
    assert measured[-1][1]["dev/loss"] < measured[0][1]["dev/loss"]
    rates = [each["train/learning_rate"] for _, each in records(run) if "train/loss" in each]
    assert max(rates) == rates[3] == pytest.approx(3e-3), "10 % of 36 steps are 4"


def test_figures_on_dev_are_of_the_rows_with_a_label(storage, tmp_path):
    for name in ("train", "dev"):
        header, *lines = (storage / "data" / f"{name}.tsv").read_text().splitlines()
        kept = [line if n % 2 else line.split("\t")[0] + "\t" for n, line in enumerate(lines)]
        (tmp_path / f"{name}.tsv").write_text("\n".join([header, *kept]) + "\n")
    run, _, _ = finetune_here(storage, name="half", data=tmp_path, epochs=6)
    assert len(run.parts.evaluation._dev.examples) == 20
    figures = [each["dev/accuracy"] for _, each in records(run) if "dev/accuracy" in each]
    assert max(figures) > 0.9, "half of the rows are no mistakes"


@pytest.mark.some(1)
@pytest.mark.parametrize("stops", [(12,), (17, 8)])
def test_stopped_anywhere_and_going_on_it_writes_the_same_bits(storage, whole, stops):
    name = f"parts-{'-'.join(map(str, stops))}"
    for stop_after in stops:
        # Layers that are computed again change no bit either.
        given = {"name": name, "checkpoint__every_steps": 5, "recompute": "layers"}
        _, outcome, _ = finetune_here(storage, stop_after, **given)
        assert outcome.stopped
    run, outcome, _ = finetune_here(storage, name=name, checkpoint__every_steps=5)
    assert outcome == Outcome(36, stopped=False)
    assert records(run) == records(whole[0])
    paths = [newest_checkpoint(each.folder.checkpoints)[0] for each in (run, whole[0])]
    for file in ("model.safetensors", f"files/{BEST_WEIGHTS}", f"files/{BEST_PREDICTIONS}"):
        assert (paths[0] / file).read_bytes() == (paths[1] / file).read_bytes(), file


@pytest.mark.slow
def test_what_a_later_start_finds_of_a_lost_future_is_forgotten(storage, whole):
    """Killed after an epoch's end and before its checkpoint: the best file is of the future."""
    finetune_here(storage, 10, name="future", checkpoint__every_steps=5)
    folder = storage / "runs" / "future"
    (folder / BEST_WEIGHTS).write_bytes(b"of the future")
    run, _, _ = finetune_here(storage, name="future", checkpoint__every_steps=5)
    ours, theirs = (load_file(each.folder.path / BEST_WEIGHTS) for each in (run, whole[0]))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_best_epoch_is_kept_not_the_last(storage):
    data = write_task(storage / "inverted", inverted=True)
    settings = {"name": "best", "data": data, "checkpoint__every_steps": 12, "checkpoint__keep": 3}
    run, _, _ = finetune_here(storage, **settings)
    scores = [each["dev/accuracy"] for _, each in records(run) if "dev/accuracy" in each]
    assert scores[0] > scores[-1], "learning makes it worse"
    last, _, first = sorted(run.folder.checkpoints.iterdir(), reverse=True)
    assert read_checkpoint(last).extra["notes"]["best"]["epoch"] == 1
    best = load_file(read_checkpoint(last).files[BEST_WEIGHTS])
    of_first = load_file(first / "model.safetensors")
    assert best.keys() == of_first.keys()
    assert all(torch.equal(best[name], of_first[name]) for name in best)
    predictions = [json.loads(line) for line in (run.folder.path / BEST_PREDICTIONS).open()]
    gold = [example.answer for example in run.parts.evaluation._dev.examples]
    right = [each["label"] == answer for each, answer in zip(predictions, gold, strict=True)]
    assert sum(right) / len(right) == scores[0]


EARLY = {"epochs": 6, "patience": 2, "evaluation__every_steps": 4, "checkpoint__every_steps": 5}


@pytest.fixture
def inverted(tmp_path):
    """Data of which learning makes dev worse, so that the first evaluation is the best."""
    write_task(tmp_path / "data", inverted=True)
    write_encoder(tmp_path / "encoder")
    return tmp_path


def test_a_run_ends_where_patience_does_and_says_what_is_missing(inverted):
    run, outcome, progress = finetune_here(inverted, name="early", **EARLY)
    assert outcome == Outcome(12, stopped=False), "evaluated after 4, 8 and 12 of 72 steps"
    info = read_checkpoint(newest_checkpoint(run.folder.checkpoints)[0])
    assert info.step == info.extra["total_steps"] == 12 and info.extra["planned_steps"] == 72
    assert info.extra["notes"]["best"]["epoch"] == round(4 / 12, 4)
    assert info.extra["notes"]["without_better"] == 2
    assert (progress[-1].step, progress[-1].total_steps) == (12, 12)
    assert run.folder.is_trained(), "the same command trains no more"
    epochs = [each["dev/epoch"] for _, each in records(run) if "dev/epoch" in each]
    assert epochs == [pytest.approx(step / 12) for step in (4, 8, 12)]
    job = SimpleNamespace(settings=run.parts.settings)
    said = ended_early(job, info)
    assert "after step 12 of 72" in said and "94% of its peak" in said and "--epochs 1 " in said


@pytest.mark.some(1)
@pytest.mark.parametrize("stops", [[3], [4], [6, 5], [8], [11]])
def test_stopped_on_the_way_it_ends_early_at_the_same_bits(inverted, stops):
    whole, _, _ = finetune_here(inverted, name="whole", **EARLY)
    for stop_after in stops:
        assert finetune_here(inverted, stop_after, name="parts", **EARLY)[1].stopped
    run, outcome, _ = finetune_here(inverted, name="parts", **EARLY)
    assert outcome == Outcome(12, stopped=False) and records(run) == records(whole)
    paths = [newest_checkpoint(each.folder.checkpoints)[0] for each in (run, whole)]
    for file in ("model.safetensors", f"files/{BEST_WEIGHTS}", f"files/{BEST_PREDICTIONS}"):
        assert (paths[0] / file).read_bytes() == (paths[1] / file).read_bytes(), file


def test_another_figure_may_select_the_best_state_in_its_own_direction(storage, whole):
    run, _, _ = finetune_here(storage, name="by-loss", evaluation__metric="loss")
    best = read_checkpoint(newest_checkpoint(run.folder.checkpoints)[0]).extra["notes"]["best"]
    found = [each for _, each in records(run) if "dev/loss" in each]
    least = min(found, key=lambda each: each["dev/loss"])
    assert best["epoch"] == least["dev/epoch"] and best["score"] == least["dev/accuracy"]
    assert records(run) == records(whole[0]), "it is only which state is kept"


def test_layers_may_stay_begin_anew_and_learn_at_rates_of_their_own(tmp_path):
    storage = tmp_path
    shaped = {"freeze_layers": 1, "reinit_layers": 1, "optimizer__layer_decay": 0.5}
    write_task(storage / "data")
    write_encoder(storage / "encoder", layers=3)
    whole, _, _ = finetune_here(storage, name="shaped", **shaped)
    finetune_here(storage, 7, name="shaped-parts", **shaped)
    again, _, _ = finetune_here(storage, name="shaped-parts", **shaped)
    paths = [newest_checkpoint(each.folder.checkpoints)[0] for each in (whole, again)]
    weights = [load_file(path / "model.safetensors") for path in paths]
    assert all(torch.equal(each, weights[1][name]) for name, each in weights[0].items())
    _, start, _ = load_model_folder(storage / "encoder")
    before = dict(start.named_parameters())
    for name, after in weights[0].items():
        if name.startswith(("encoder.embeddings.", "encoder.layers.0.")):
            assert torch.equal(after, before[name]), name
        elif name.startswith("encoder.layers.1.") and name.endswith("weight"):
            assert not torch.equal(after, before[name]), name
    plain, _, _ = finetune_here(storage, 1, name="plain")
    result = SimpleNamespace(num_real_tokens=90, sums=[0, 0, 8], sum_of_squared_lengths=900)
    assert 0 < whole.parts.step_flops(result) < plain.parts.step_flops(result)


def test_the_modern_block_learns_from_the_mean_of_all_tokens(tmp_path):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder", layers=2, kind=ModernConfig)
    mean = {"options__classifier_pooling": "mean", "dropout__attention_probs_dropout_prob": 0}
    whole, _, _ = finetune_here(tmp_path, name="mean", **mean)
    finetune_here(tmp_path, 7, name="mean-parts", **mean)
    again, _, _ = finetune_here(tmp_path, name="mean-parts", **mean)
    paths = [newest_checkpoint(each.folder.checkpoints)[0] for each in (whole, again)]
    first, second = (load_file(path / "model.safetensors") for path in paths)
    assert first.keys() == second.keys()
    assert all(torch.equal(each, second[name]) for name, each in first.items())
    assert max(each.get("dev/accuracy", 0) for _, each in records(whole)) > 0.9


def test_a_loss_that_is_no_number_names_the_step_and_keeps_the_checkpoint(storage):
    finetune_here(storage, 8, name="nan")
    with pytest.raises(NonFiniteLossError, match=r"step \d+: loss nan"):
        finetune_here(storage, name="nan", optimizer__peak_learning_rate=1e30)
    path, damaged = newest_checkpoint(storage / "runs" / "nan" / "checkpoints")
    assert path.name == "step-00000008" and not damaged


def test_a_run_that_goes_on_under_other_threads_says_so(storage, monkeypatch):
    finetune_here(storage, 5, name="threads")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    _, outcome, progress = finetune_here(storage, 2, name="threads")
    assert outcome == Outcome(7, stopped=True)
    said = " ".join(progress[-1].messages)
    assert "resuming from step 5" in said and "7 threads where there were 1" in said
    assert progress[-1].total_steps == 36


@pytest.mark.slow
def test_rare_labels_may_count_more_and_a_run_goes_on_with_the_same_bits(tmp_path):
    """Nine in ten are of one label; with balanced weights the rare one is found."""
    choose = random.Random(5)
    for split, count in (("train", 96), ("dev", 48)):
        lines = ["text\tlabel"]
        for number in range(count):
            label, words = ("rare", WORDS[:6]) if number % 8 == 0 else ("usual", WORDS[4:])
            lines.append(f"{' '.join(choose.choices(words, k=4))}\t{label}")
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    write_encoder(tmp_path / "encoder")
    settings = {"epochs": 4, "checkpoint__every_steps": 5, "options__metric": "f1_macro"}
    shaped = settings | {"loss__class_weights": "balanced", "loss__label_smoothing": 0.1}
    plain, _, _ = finetune_here(tmp_path, name="plain", **settings)
    whole, outcome, _ = finetune_here(tmp_path, name="whole", **shaped)
    assert outcome == Outcome(48, stopped=False)
    finetune_here(tmp_path, 17, name="parts", **shaped)
    again, _, _ = finetune_here(tmp_path, name="parts", **shaped)
    paths = [newest_checkpoint(each.folder.checkpoints)[0] for each in (whole, again, plain)]
    weights = [(path / "model.safetensors").read_bytes() for path in paths]
    assert weights[0] == weights[1] != weights[2]
    best = [
        max(each["dev/f1_macro"] for _, each in records(run) if "dev/f1_macro" in each)
        for run in (whole, plain)
    ]
    assert best[0] > best[1] + 0.1
