"""The worker's loop in this process, without Ray: what a step leaves, and going on from it."""

import pytest
import torch
from pretraining_runs import Run, train_here, write_corpus

from bert_core.flops import training_flops
from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint
from bert_core.training.loop import StepResult
from bert_core.training.readings import NonFiniteLossError
from workflows.cluster import Worker
from workflows.pretrain_settings import PretrainSettings
from workflows.pretraining_worker import PretrainingRun, step_metrics
from workflows.settings import parse_command_line

PHASES = '[{"sequence_length": 16, "steps": 14}, {"sequence_length": 32, "steps": 11}]'


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def train(tmp_path, corpus):
    """Trains in a folder of the given name, as one start of a run does."""

    def start(name, stop_after=-1, **settings):
        named = {key.replace("__", "."): value for key, value in settings.items()}
        here = {"phases": PHASES, "checkpoint.every_steps": 6, "evaluation.every_steps": 10}
        run = Run(tmp_path, name, corpus, steps=25, settings=here | named)
        return run, *train_here(run, stop_after)

    return start


def test_stopped_anywhere_and_going_on_it_writes_the_same_bits(train):
    whole, outcome, _ = train("whole")
    assert outcome == {"step": 25, "stopped": False}
    for stop_after, step in ((3, 3), (11, 14), (4, 18)):
        run, outcome, news = train("parts", stop_after)
        assert outcome == {"step": step, "stopped": True}
        assert news[-1]["checkpoint"] == f"step-{step:08d}"
    run, outcome, news = train("parts")
    assert outcome == {"step": 25, "stopped": False}
    assert "going on from step 18" in news[-1]["messages"]
    assert run.records() == whole.records()
    assert [step for step, each in run.records() if "heldout/perplexity" in each] == [10, 20, 25]


def test_told_to_stop_in_the_last_step_it_has_finished(train):
    run, outcome, _ = train("run", 25)
    assert outcome == {"step": 25, "stopped": False}
    assert "heldout/perplexity" in run.records()[-1][1]


def test_what_came_after_the_checkpoint_is_done_again(train):
    whole, _, _ = train("whole")
    path, _ = newest_checkpoint(whole.checkpoints)
    records = whole.records()
    for path in sorted(whole.checkpoints.iterdir())[-2:]:
        (path / "model.safetensors").write_bytes(b"damaged")
    _, _, news = train("whole")
    assert whole.records() == records
    *damaged, going_on = news[-1]["messages"]
    assert going_on == "going on from step 18"
    assert [message.split("/")[-1].split(" ")[0] for message in damaged] == [
        "step-00000025",
        "step-00000024",
    ]


def test_a_checkpoint_says_what_made_it_and_keeps_the_journal(train, corpus):
    run, _, news = train("run", checkpoint__keep=2)
    path, _ = newest_checkpoint(run.checkpoints)
    info = read_checkpoint(path)
    assert sorted(each.name for each in run.checkpoints.iterdir()) == [
        "step-00000024",
        "step-00000025",
    ]
    assert info.extra["settings"]["phases"][0] == {"sequence_length": 16, "steps": 14}
    assert info.extra["device"] == "cpu" and info.extra["used_seconds"] > 0
    assert info.files["journal.jsonl"].read_bytes() == (run.folder / "journal.jsonl").read_bytes()
    assert {"tokens_per_second", "padding_share", "mfu", "memory_bytes"} <= news[-1].keys()


def test_a_loss_that_is_no_number_names_the_step_and_keeps_the_checkpoint(train):
    run, _, _ = train("run", 8)
    rate = {"optimizer__peak_learning_rate": 1e30}
    with pytest.raises(NonFiniteLossError, match="step 10: loss nan") as caught:
        train("run", **rate)
    assert caught.value.step == 10
    path, damaged = newest_checkpoint(run.checkpoints)
    assert path.name == "step-00000008" and not damaged
    assert run.step() == 9


def test_metrics_are_means_over_the_global_batch():
    def result(*sums):
        each = torch.tensor(sums, dtype=torch.float64)
        loss, norm, count = torch.tensor(4.75), torch.tensor(0.5), torch.tensor(90)
        return StepResult(3, loss, each, norm, 1e-3, count, count, 900, stopped=False)

    metrics = step_metrics(result(40.0, 5.0, 10.0, 6.0, 3.0, 8.0))
    assert metrics == {
        "train/loss": 4.75,
        "train/masked_token_loss": 4.0,
        "train/masked_token_accuracy": 0.5,
        "train/learning_rate": 1e-3,
        "train/gradient_norm": 0.5,
        "train/next_sentence_loss": 0.75,
        "train/next_sentence_accuracy": 3 / 8,
    }
    alone = step_metrics(result(40.0, 5.0, 10.0, 0.0, 0.0, 0.0))
    assert "train/next_sentence_loss" not in alone


def test_the_flops_of_a_step_count_each_row_at_its_length(train):
    run, _, _ = train("run", 1)
    sums = torch.tensor([40.0, 5.0, 100.0, 6.0, 3.0, 8.0], dtype=torch.float64)
    loss, norm, tokens = torch.tensor(1.15), torch.tensor(0.5), torch.tensor(900.0)
    squares = 10**9  # so unequal are the lengths that attention costs more than all the rest
    result = StepResult(3, loss, sums, norm, 1e-3, tokens, tokens, squares, stopped=False)
    settings = parse_command_line(PretrainSettings, run.arguments())
    here = PretrainingRun(settings, Worker(0, 1, torch.device("cpu"), None), run.folder, run.shards)
    assert here.step_flops(result) == training_flops(
        here.config,
        num_tokens=900,
        sum_of_squared_lengths=squares,
        num_predictions=100,
        num_rows=8,
        num_read=108,
    )


def test_warm_up_and_decay_run_over_both_phases(train):
    run, _, _ = train("run", optimizer__warmup_steps=5)
    rates = [each["train/learning_rate"] for _, each in run.records() if "train/loss" in each]
    peak = 2e-3
    assert rates[:5] == pytest.approx([peak * step / 5 for step in range(1, 6)])
    assert rates[5:] == pytest.approx([peak * (25 - step) / 20 for step in range(5, 25)])
