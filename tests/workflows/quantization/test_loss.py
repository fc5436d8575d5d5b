"""Measuring: both compute everything, in turns; every kind of task is measured."""

import numpy as np
import pytest
import torch
from small_tasks import write_data, write_encoder

from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.catalog import TASKS, task_config
from bert_core.tasks.task import add_task_head
from workflows.quantization.loss import in_turns, measured_loss
from workflows.quantization.settings import QuantizeSettings


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
    _, model, tokenizer = load_model_folder(write_encoder(tmp_path / "encoder"))
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
    before, after = (float(each) for each in loss.rows[0][1:3])
    assert abs(before - after) < 0.5
    assert "of 12 predictions changed" in loss.notes[0] and "tokens took" in loss.notes[1]
