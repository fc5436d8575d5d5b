"""The worker's loop in this process, without Ray: what a step leaves, and going on from it."""

import json
import math

import numpy as np
import pytest
import torch
from pretraining_runs import Run, train_here, write_corpus

from bert_core.config import training_flops
from bert_core.pretraining import compute_loss
from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint
from bert_core.training.loop import NonFiniteLossError, StepResult
from workflows.clusters.workers import Worker
from workflows.messages import Outcome
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.worker import (
    PretrainingRows,
    _loss,
    pretraining_parts,
    step_metrics,
    steps_left,
)
from workflows.settings import parse_command_line
from workflows.training.run import backend_of

HELDOUT = (
    "next_token_loss",
    "next_token_accuracy",
    "next_token_perplexity",
    "unigram_loss",
    "num_predictions",
    "num_rows",
)
PHASES = '[{"sequence_length": 16, "steps": 14}, {"sequence_length": 32, "steps": 11}]'


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


SETTINGS = {
    "phases": PHASES,
    "checkpoint.every_steps": 6,
    "checkpoint.keep": 2,
    "evaluation.every_steps": 10,
    "optimizer.warmup_steps": 5,
}


@pytest.fixture
def train(tmp_path, corpus):
    """Trains in a folder of the given name, as one start of a run does."""

    def start(name, stop_after=-1, **settings):
        named = {key.replace("__", "."): value for key, value in settings.items()}
        run = Run(tmp_path, name, corpus, steps=25, settings=SETTINGS | named)
        return run, *train_here(run, stop_after)

    return start


KINDS = {
    "mlm_nsp": {},
    "left_to_right": {"rows.objective": "left_to_right"},
    "modern": {
        "model.block": "modern",
        "model.num_hidden_layers": 2,
        "model.local_attention": 8,
        "batch.packed": "true",
        # The second phase has more rows, fewer masks and slower rotations.
        "phases": '[{"sequence_length": 16, "steps": 14, "masked_share": 0.3},'
        ' {"sequence_length": 32, "steps": 11, "global_batch_size": 12,'
        ' "global_rope_theta": 160000}]',
    },
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, corpus):
    """Uninterrupted runs by their kind, each with its outcome and its progress."""
    runs = {}
    for kind, own in KINDS.items():
        settings = SETTINGS | own
        run = Run(tmp_path_factory.mktemp("whole"), "run", corpus, steps=25, settings=settings)
        runs[kind] = run, *train_here(run)
    return runs


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("kind", "stops", "perplexity"),
    [
        ("mlm_nsp", ((3, 3), (11, 14), (4, 18)), "heldout/perplexity"),
        ("modern", ((14, 14), (4, 18)), "heldout/perplexity"),
        ("left_to_right", ((18, 18),), "heldout/next_token_perplexity"),
    ],
)
def test_stopped_anywhere_and_going_on_it_writes_the_same_bits(
    train, whole, kind, stops, perplexity
):
    for stop_after, step in stops:
        run, outcome, progress = train("parts", stop_after, **KINDS[kind])
        assert outcome == Outcome(step, stopped=True)
        assert progress[-1].checkpoint == f"step-{step:08d}"
    run, outcome, progress = train("parts", **KINDS[kind])
    assert outcome == whole[kind][1] == Outcome(25, stopped=False)
    assert "resuming from step 18" in progress[-1].messages
    assert run.records() == whole[kind][0].records()
    assert [step for step, each in run.records() if perplexity in each] == [10, 20, 25]


def test_left_to_right_its_figures_are_those_of_next_tokens(whole):
    run, _, _ = whole["left_to_right"]
    figures = {}
    for _, each in run.records():
        figures |= each
    for name in ("train/next_token_loss", "train/next_token_accuracy"):
        assert name in figures
    heldout = {name: figures[f"heldout/{name}"] for name in HELDOUT}
    assert heldout["next_token_perplexity"] == pytest.approx(math.exp(heldout["next_token_loss"]))
    assert not [name for name in figures if "masked" in name or "next_sentence" in name]
    assert not heldout["num_rows"], "of which nobody is asked whether they follow"
    # Next tokens with their [SEP]s, not masked ones: all but the first of each row.
    assert heldout["num_predictions"] > 5 * 64
    # [SEP] stands in no text: as rare as that, its part alone would be some nats too many.
    assert heldout["unigram_loss"] < math.log(500)


def test_the_unigram_baseline_of_next_tokens_knows_how_often_rows_end(train):
    run, _, _ = train("run", 1)
    arguments = [*run.arguments(), "--rows.objective", "left_to_right"]
    settings = parse_command_line(PretrainSettings, arguments)
    backend = backend_of(Worker(0, 1, torch.device("cpu"), None), settings)
    rows = PretrainingRows(settings, run.shards, backend, run.folder / "cache")
    counts, separator = rows.token_counts(0), rows.vocabulary.sep_id
    source = rows._training(0)
    labels = torch.cat([batch.masked_ids for batch in source.epoch_zero(2048)])
    share = (labels == separator).double().mean().item()
    assert counts[separator] / counts.sum() == pytest.approx(share, rel=1e-3)
    text = np.load(run.shards / "token_counts.npy", allow_pickle=False)
    assert np.array_equal(np.delete(counts, separator), np.delete(text, separator))
    assert not text[separator]


@pytest.fixture
def rows_of(tmp_path, corpus):
    """The rows of a run with these phases, (steps, more) of 16 tokens each, and other settings."""

    def make(*phases, **changes):
        of_phases = [{"sequence_length": 16, "steps": steps} | more for steps, more in phases]
        given = {"phases": json.dumps(of_phases), "optimizer.warmup_steps": 0, **changes}
        run = Run(tmp_path, "run", corpus, steps=25, settings=SETTINGS | given)
        settings = parse_command_line(PretrainSettings, run.arguments())
        backend = backend_of(Worker(0, 1, torch.device("cpu"), None), settings)
        return PretrainingRows(settings, run.shards, backend, run.folder / "cache")

    return make


def predicted(rows):
    """The masked tokens of each global batch of a run."""
    steps = [step.micro_batches for step in rows.batches(0)]
    return [torch.cat([batch.masked_ids for batch in batches]).tolist() for batches in steps]


def test_phases_of_one_length_go_on_in_the_same_rows(rows_of):
    whole = predicted(rows_of((20, {})))
    assert predicted(rows_of((9, {}), (1, {}), (10, {}))) == whole
    size = rows_of((1, {}))._settings.batch.global_batch_size
    growing = predicted(rows_of((4, {"global_batch_size": size // 2}), (18, {})))
    assert growing[4:] == whole[2:], "half a batch takes half of the rows"
    again = predicted(rows_of((9, {}), (1, {"sequence_length": 32}), (10, {})))
    assert again[:9] == whole[:9] and again[10:] != whole[10:], "other rows lie between"


def test_packed_phases_of_one_length_have_no_row_twice(rows_of):
    rows = rows_of((3, {}), (4, {}), **{"batch.packed": "true"})
    begun = rows._training(1)._first_row
    window = rows._training(0).steps_per_window
    assert begun == window * rows._settings.batch.global_batch_size, "the whole window is taken"


def test_all_phases_of_one_length_are_measured_on_the_same_rows(rows_of):
    rows = rows_of((9, {}), (1, {"masked_share": 0.3, "global_batch_size": 2}), (10, {}))
    held_out = [
        torch.cat([batch.masked_ids for batch in rows.heldout(phase)]).tolist()
        for phase in range(3)
    ]
    assert held_out[0] == held_out[1] == held_out[2]


def test_held_out_rows_are_read_in_passes_that_memory_has_room_for(rows_of, monkeypatch):
    monkeypatch.setattr("bert_core.text.batches._MOST_TOKENS", 5 * 16)
    source = rows_of((1, {"global_batch_size": 2, "micro_batch_size": 8}))._training(0)
    sizes = [len(batch.next_sentence) for batch in source.epoch_zero(64)]
    assert max(sizes) == 5, "not 8, and more than the 2 of training"


def test_the_time_left_counts_rows_and_lengths():
    phases = [
        {"sequence_length": 128, "steps": 100, "global_batch_size": 64},
        {"sequence_length": 128, "steps": 50},
        {"sequence_length": 512, "steps": 10},
    ]
    settings = PretrainSettings(phases=phases, batch={"global_batch_size": 256})
    left = [steps_left(settings, step) for step in (0, 60, 100, 101, 150, 151, 160)]
    of_second, of_last = 4, 16  # in steps of the first phase
    assert left == [
        100 + 50 * of_second + 10 * of_last,
        40 + 50 * of_second + 10 * of_last,
        50 * of_second + 10 * of_last,  # the last step was of the first phase
        49 + 10 * of_last / of_second,
        10 * of_last / of_second,
        9,
        0,
    ]


def test_a_decay_does_not_begin_with_the_rows_that_its_run_began_with(rows_of, tmp_path):
    rows = rows_of((4, {}))
    begun = predicted(rows)
    rows._settings = rows._settings.model_copy(update={"decay_from": tmp_path})
    assert not any(step in begun for step in predicted(rows))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("compile_it", [False, True])
def test_the_loss_is_compiled_for_cuda_where_the_settings_say_so(device, compile_it):
    settings = PretrainSettings(compile=compile_it)
    plain = _loss(settings, torch.device(device)) is compute_loss
    assert plain == (device == "cpu" or not compile_it)


def test_told_to_stop_in_the_last_step_it_has_finished(train):
    run, outcome, _ = train("run", 25)
    assert outcome == Outcome(25, stopped=False)
    assert "heldout/perplexity" in run.records()[-1][1]


@pytest.mark.slow
def test_what_came_after_the_checkpoint_is_done_again(train, whole):
    run, _, _ = train("run")
    # The newest is damaged: the run goes on from the one before, and does the last step again.
    (run.checkpoints / "step-00000025" / "model.safetensors").write_bytes(b"damaged")
    _, _, progress = train("run")
    assert run.records() == whole["mlm_nsp"][0].records()
    damaged, going_on = progress[-1].messages
    assert going_on == "resuming from step 24" and "/step-00000025 is damaged" in damaged


def test_a_checkpoint_says_what_made_it_and_keeps_the_journal(whole):
    run, _, progress = whole["mlm_nsp"]
    path, _ = newest_checkpoint(run.checkpoints)
    info = read_checkpoint(path)
    assert sorted(each.name for each in run.checkpoints.iterdir()) == [
        "step-00000024",
        "step-00000025",
    ]
    assert info.extra["settings"]["phases"][0] == {"sequence_length": 16, "steps": 14}
    assert info.extra["device"] == "cpu" and info.extra["used_seconds"] > 0
    assert info.files["journal.jsonl"].read_bytes() == (run.folder / "journal.jsonl").read_bytes()
    assert progress[-1].speed.tokens_per_second > 0 and progress[-1].speed.memory_bytes > 0


def test_a_loss_that_is_no_number_names_the_step_and_keeps_the_checkpoint(train):
    run, _, _ = train("run", 8)
    rate = {"optimizer__peak_learning_rate": 1e30}
    with pytest.raises(NonFiniteLossError, match="step 10: loss nan") as caught:
        train("run", **rate)
    assert caught.value.step == 10
    path, damaged = newest_checkpoint(run.checkpoints)
    assert path.name == "step-00000008" and not damaged
    assert run.step() == 9


def test_the_flops_of_a_step_count_each_row_at_its_length(train):
    run, _, _ = train("run", 1)
    sums = torch.tensor([40.0, 5.0, 100.0, 6.0, 3.0, 8.0], dtype=torch.float64)
    loss, norm, tokens = torch.tensor(1.15), torch.tensor(0.5), torch.tensor(900.0)
    squares = 10**9  # so unequal are the lengths that attention costs more than all the rest
    result = StepResult(3, loss, sums, norm, 1e-3, tokens, tokens, squares, stopped=False)
    settings = parse_command_line(PretrainSettings, run.arguments())
    worker = Worker(0, 1, torch.device("cpu"), None)
    parts = pretraining_parts(settings, run.shards, worker, run.folder)
    assert parts.step_flops(result) == training_flops(
        parts.state.model.encoder.config,
        num_tokens=900,
        sum_of_squared_lengths=squares,
        num_predictions=100,
        num_rows=8,
        num_read=108,
    )


def test_warm_up_and_decay_run_over_both_phases(whole):
    run, _, _ = whole["mlm_nsp"]
    rates = [each["train/learning_rate"] for _, each in run.records() if "train/loss" in each]
    peak = 2e-3
    assert rates[:5] == pytest.approx([peak * step / 5 for step in range(1, 6)])
    assert rates[5:] == pytest.approx([peak * (25 - step) / 20 for step in range(5, 25)])


def step_result(*sums):
    each = torch.tensor(sums, dtype=torch.float64)
    loss, norm, count = torch.tensor(4.75), torch.tensor(0.5), torch.tensor(90)
    return StepResult(3, loss, each, norm, 1e-3, count, count, 900, stopped=False)


def test_metrics_are_means_over_the_global_batch():
    metrics = step_metrics(step_result(40.0, 5.0, 10.0, 6.0, 3.0, 8.0), "mlm_nsp")
    assert metrics == {
        "train/loss": 4.75,
        "train/masked_token_loss": 4.0,
        "train/masked_token_accuracy": 0.5,
        "train/learning_rate": 1e-3,
        "train/gradient_norm": 0.5,
        "train/next_sentence_loss": 0.75,
        "train/next_sentence_accuracy": 3 / 8,
    }
    alone = step_metrics(step_result(40.0, 5.0, 10.0, 0.0, 0.0, 0.0), "mlm")
    assert "train/next_sentence_loss" not in alone and "train/masked_token_loss" in alone


def test_left_to_right_they_have_names_of_their_own():
    metrics = step_metrics(step_result(40.0, 5.0, 10.0, 0.0, 0.0, 0.0), "left_to_right")
    assert (metrics["train/next_token_loss"], metrics["train/next_token_accuracy"]) == (4.0, 0.5)
    assert not [name for name in metrics if "masked" in name]
