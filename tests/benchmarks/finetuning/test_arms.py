import numpy as np
import pytest
import torch
from small_tasks import WRITERS, write_data, write_encoder

from benchmarks.finetuning.arms import (
    Recipe,
    our_training,
    their_features,
    their_trainer,
    train_in_turns,
    write_start,
)
from bert_core.model_folder import load_model_folder
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.task import task_loss
from bert_core.training.settings import FinetuningOptimizerSettings

RECIPE = Recipe(
    FinetuningOptimizerSettings(peak_learning_rate=1e-3),
    batch_size=8,
    total_steps=6,
    seed=1,
    device=torch.device("cpu"),
)


@pytest.fixture(params=list(WRITERS))
def start(request, tmp_path):
    """A task, its rows, and the folder that both arms start from."""
    task = TASKS[request.param]
    examples = task.examples(write_data(request.param, tmp_path / "data"), "train")
    task = task.with_labels(examples)
    encoder = write_encoder(tmp_path / "encoder")
    write_start(request.param, task, encoder, tmp_path / "start", seed=1)
    return task, task.encode(examples, load_model_folder(encoder)[2]), tmp_path / "start"


def test_the_trainer_reads_the_same_labels_and_starts_from_the_same_weights(start):
    task, rows, folder = start
    trainer = their_trainer(task, rows, folder, RECIPE, fastest=False)
    model, _, _ = our_training(task, rows, folder, RECIPE)
    features = their_features(task, rows)
    assert len(features) == rows.num_items
    trainer.model.eval()
    model.eval()
    items = np.arange(20)  # of many lengths, three groups of the Trainer's
    count = int(rows.label_counts[items].sum())
    ours, _ = task_loss(task, model, rows.batch(items, "packed"), num_labels=count)
    theirs = trainer.model(**trainer.data_collator([features[item] for item in items])).loss
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)


def test_the_trainer_makes_as_many_steps_as_it_is_told(start):
    task, rows, folder = start
    trainer = their_trainer(task, rows, folder, RECIPE, fastest=False)
    before = {name: each.clone() for name, each in trainer.model.state_dict().items()}
    finished = []

    def turns():
        for _ in range(3):
            finished.append(trainer.state.global_step)
            yield

    train_in_turns(trainer, turns())
    assert finished == [0, 1, 2]
    assert trainer.state.global_step == 3
    changed = [
        name for name, each in trainer.model.state_dict().items() if (each != before[name]).any()
    ]
    assert any("classifier" in name or "qa_outputs" in name for name in changed)
    assert any("encoder" in name for name in changed)


def test_what_the_trainer_raises_arrives(start):
    task, rows, folder = start
    trainer = their_trainer(task, rows, folder, RECIPE, fastest=False)

    def fail(features):
        raise ValueError("no such batch")

    trainer.data_collator = fail
    with pytest.raises(ValueError, match="no such batch"):
        train_in_turns(trainer, iter([None]))
