"""A tagger over kept features in this process, without Ray: learning, going on, kept states."""

import pytest
import torch
from finetuning_runs import arguments, finetune_here, write_encoder, write_tagged
from safetensors.torch import load_file

from bert_core.example import check_example, read_example
from bert_core.example_answers import answer_of
from bert_core.model.encoder import Encoder
from bert_core.model.tagger import FeatureTagger
from bert_core.predictor import load_predictor
from bert_core.training.checkpoint import newest_checkpoint
from workflows.finetune import opened_job, parse
from workflows.finetuning.results import write_results
from workflows.finetuning.worker import BEST_PREDICTIONS, BEST_WEIGHTS
from workflows.messages import Outcome
from workflows.runs.storage import open_storage

SETTINGS = {
    "task": "ner",
    "approach": "features",
    "strategy": "weighted_sum_all",
    "tagger__lstm_size": 16,
    "tagger__dropout": 0.1,
    "optimizer__peak_learning_rate": 2e-2,
    "epochs": 5,
    "checkpoint__every_steps": 5,
}
STEPS = 60


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    storage = tmp_path_factory.mktemp("storage")
    write_tagged(storage / "data")
    write_encoder(storage / "encoder")
    return storage


def learn(storage, name, stop_after=-1, **changed):
    return finetune_here(storage, stop_after, name=name, **SETTINGS | changed)


@pytest.fixture(scope="module")
def whole(storage):
    return learn(storage, "whole")


def test_a_tagger_learns_over_an_encoder_that_stays(whole, storage):
    run, outcome, progress = whole
    assert outcome == Outcome(STEPS, stopped=False)
    assert isinstance(run.parts.state.model, FeatureTagger)
    assert run.parts.evaluation.notes["best"]["score"] > 0.95
    assert progress[-1].speed.mfu > 0
    files = {
        path.relative_to(storage / "features") for path in (storage / "features").rglob("*.npy")
    }
    assert {str(path) for path in files} == {
        f"{split}/layer-01-float16.npy" for split in ("train", "dev")
    }


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(12, 30)])
def test_stopped_anywhere_and_going_on_it_writes_the_same_bits(storage, whole, stops):
    name = f"parts-{'-'.join(map(str, stops))}"
    for stop_after in stops:
        assert learn(storage, name, stop_after)[1].stopped
    run, outcome, _ = learn(storage, name)
    assert outcome == Outcome(STEPS, stopped=False)
    paths = [newest_checkpoint(each.folder.checkpoints)[0] for each in (run, whole[0])]
    for file in ("model.safetensors", f"files/{BEST_WEIGHTS}", f"files/{BEST_PREDICTIONS}"):
        assert (paths[0] / file).read_bytes() == (paths[1] / file).read_bytes(), file


@pytest.mark.slow
def test_another_seed_reads_the_states_that_are_kept(storage, whole, monkeypatch):
    monkeypatch.setattr(Encoder, "hidden_states", None)  # whoever calls it fails
    run, _, _ = learn(storage, "seed", seed=1)
    assert run.parts.evaluation.notes["best"]["score"] > 0.95
    ours, theirs = (each.parts.state.model.lstm.weight_hh_l0 for each in (run, whole[0]))
    assert not torch.equal(ours, theirs)


def test_the_best_tagger_and_its_encoder_become_a_model_folder(storage, whole, capsys):
    given = arguments(storage, name="whole", **SETTINGS)
    settings = parse(given)
    with opened_job(settings, open_storage(settings.storage)) as job:
        results = write_results(job)
        examples = job.data.dev.examples
    example = read_example(job.folder.model)
    assert example.answer["entities"]
    assert check_example(example, answer_of(job.folder.model, example)) is None
    predictor = load_predictor(storage / "runs" / "whole" / "model")
    predictions, _ = predictor.predict_examples(examples)
    score = predictor.task.metrics(predictions, examples)["f1"]
    assert score == pytest.approx(results.figures["dev/f1"], abs=0.01)  # in full precision here
    best = load_file(whole[0].folder.path / BEST_WEIGHTS)
    tagger = predictor.model.heads["feature_tagger"].state_dict()
    assert all(torch.equal(best[name], tagger[name]) for name in best)
    for part in ("weighted_sum_all", "2 layers, 16 wide", "A BERT encoder as it was"):
        assert part in results.card
    assert "pipeline_tag" not in results.card
