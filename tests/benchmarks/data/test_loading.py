from itertools import islice, repeat

import pytest
import torch
from small_shards import write_shards

from benchmarks.data import loading as data_loading
from benchmarks.data.loading import LoadingSettings, measure_loading, print_loading
from bert_core.errors import UserError
from bert_core.text.batches import BatchSource

SETTINGS = LoadingSettings(
    preset="tiny", sequence_length=32, tokens=256, rounds=3, steps=2, warmup_steps=1
)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setattr(data_loading, "ALONE_SECONDS", 0.0)
    monkeypatch.setattr(data_loading, "ALONE_ROUNDS", 2)
    return write_shards(tmp_path / "shards")


def test_every_figure_is_there_and_they_agree(shards, capsys):
    result = measure_loading(shards, SETTINGS)
    assert result["alone"]["tokens_per_second"] > 0
    assert result["alone"]["windows"] == data_loading.ALONE_ROUNDS
    assert 0.9 < result["alone"]["least_fill"] <= result["alone"]["fill"] <= 1
    assert [len(arm["seconds"]) for arm in result["arms"].values()] == [3, 3]
    loaded, staged = (result["arms"][arm]["seconds"] for arm in ("loaded", "staged"))
    ratios = [other / own for own, other in zip(loaded, staged, strict=True)]
    assert result["of_staged_of_rounds"] == pytest.approx(ratios)
    assert result["of_staged"] == pytest.approx(sorted(ratios)[1])
    assert result["first_batch"]["resumed_seconds"] > 0
    print_loading(result)
    assert f"{result['of_staged']:.3f} of the rate" in capsys.readouterr().out


def test_both_arms_train_on_the_same_steps(shards, monkeypatch):
    seen = []

    def counting(vocab_size, feed, settings):
        for batches in feed:
            seen.append([batch.input_ids.clone() for batch in batches.micro_batches])
            yield

    monkeypatch.setattr(data_loading, "training_run", counting)
    data_loading.trained_with_either(shards, SETTINGS)
    turns = [seen[:1], seen[1:2]]
    turns += [seen[begin : begin + 2] for begin in range(2, len(seen), 2)]
    assert len(turns) == 2 * (1 + SETTINGS.rounds)
    for one, other in zip(turns[::2], turns[1::2], strict=True):
        assert_equal_steps(one, other)
    assert not torch.equal(turns[0][0][0], turns[2][0][0])


def assert_equal_steps(one, other):
    for step, same in zip(one, other, strict=True):
        for batch, equal in zip(step, same, strict=True):
            assert torch.equal(batch, equal)


def test_a_loader_that_is_slow_is_seen(shards, monkeypatch):
    """Each step takes it longer than a step of training: the ratio is of both times."""
    steps = BatchSource.steps

    def slow(self, first, **options):
        for batches in steps(self, first, **options):
            data_loading.time.sleep(0.2)
            yield batches

    monkeypatch.setattr(BatchSource, "steps", slow)
    assert data_loading.trained_with_either(shards, SETTINGS)["of_staged"] < 0.8


def test_the_training_run_learns(shards):
    feed = data_loading.Feed()
    feed.source = repeat(data_loading.batch_source(shards, SETTINGS).step(0))
    run = data_loading.training_run(100, feed, SETTINGS)
    losses = [float(result.loss) for result in islice(run, 20)]
    assert sum(losses[-5:]) < 0.97 * sum(losses[:5])


def test_more_tokens_than_a_row_are_needed(shards):
    with pytest.raises(UserError, match="--tokens"):
        measure_loading(shards, LoadingSettings(sequence_length=128, tokens=100))
