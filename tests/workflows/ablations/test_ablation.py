"""What one start of an ablation writes down; what it does goes through Ray in `test_ablate.py`."""

import io
import json
from dataclasses import replace

import pytest
import torch
from ablation_runs import ablation_settings, made_up_sweep, write_inputs
from pretraining_runs import Run, train_here

from bert_core.config import SIZES
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.special_tokens import num_embeddings
from bert_core.text.shards import open_shards
from bert_core.tokenizer import load_tokenizer
from workflows.ablations.ablation import opened_ablation
from workflows.ablations.run import note_figures, variant_row
from workflows.ablations.settings import parse
from workflows.messages import RunProgress
from workflows.pretrain import opened_pretraining
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.journal import read_records
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line
from workflows.sweeps.live_table import SweepTable
from workflows.sweeps.planned import TrialStatus


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))


def opened(storage, inputs, **changed):
    settings = ablation_settings(storage, inputs, **changed)
    return opened_ablation(settings, open_storage(str(storage)))


def test_a_variant_is_the_run_that_pretrain_makes(tmp_path, inputs):
    with opened(tmp_path, inputs) as ablation:
        names = {variant.variant.name: variant.name for variant in ablation.variants}
        assert ablation.outcome(at_once=2).reference.name == "mlm_nsp"
    assert list(names) == ["mlm_nsp", "mlm", "left_to_right"]
    shards = open_shards(inputs / "corpus", "train")
    for objective, name in names.items():
        run = Run(tmp_path, "any", inputs / "corpus", 8, {"rows.objective": objective})
        settings = parse_command_line(PretrainSettings, run.arguments())
        settings = settings.model_copy(update={"name": None})
        with opened_pretraining(settings, open_storage(str(tmp_path)), shards) as job:
            assert job.folder.name == name


def test_while_it_is_open_its_runs_are_its_own(tmp_path, inputs):
    with opened(tmp_path, inputs, variants=("mlm",), name="first"):
        for name, expected in (("first", "another process"), ("second", "training this run")):
            again = opened(tmp_path, inputs, variants=("mlm",), name=name)
            with pytest.raises(UserError, match=expected):
                again.__enter__()


@pytest.mark.slow
def test_what_is_left_is_what_has_no_model_folder(tmp_path, inputs):
    with opened(tmp_path, inputs) as ablation:
        first = ablation.left()[0]
        assert first.variant.name == "left_to_right", "it predicts all tokens: the longest"
        assert len(ablation.left()) == 3
        run = Run(tmp_path, first.name, inputs / "corpus", 8, {"rows.objective": "left_to_right"})
        train_here(run)
        assert len(ablation.left()) == 3, "trained, but not written out"
        (first.job.folder.path / "artifacts").mkdir()
        first.finish()
        assert [each.variant.name for each in ablation.left()] == ["mlm_nsp", "mlm"]
        sweep = ablation.sweep_settings(ablation.tasks[0])
        assert sweep.axis == (f"model={first.name}",) and sweep.model == first.name


def test_other_settings_are_another_ablation(tmp_path, inputs):
    names = set()
    for changed in (
        {},
        {"seeds": 3},
        {"variants": "mlm"},
        {"finetuning__epochs": 3},
        {"at_once": 1},
    ):
        settings = ablation_settings(tmp_path, inputs, **changed)
        settings = settings.model_copy(update={"name": None})
        with opened_ablation(settings, open_storage(str(tmp_path))) as ablation:
            names.add(ablation.folder.name)
    assert len(names) == 4 and all(name.startswith("objective-") for name in names)
    with opened(tmp_path, inputs):
        pass
    other = opened(tmp_path, inputs, study="masking")
    with pytest.raises(UserError, match="run ablation was made with other settings"):
        other.__enter__()


def test_another_start_model_or_teacher_is_another_ablation(tmp_path, inputs):
    tokenizer = load_tokenizer(inputs / "corpus")
    names = set()
    for option in ("start_from", "teacher"):
        for seed in (0, 1):
            torch.manual_seed(seed)
            model = tmp_path / f"{option}-{seed}"
            shape = {"num_hidden_layers": 1, "max_position_embeddings": 32}
            shape["vocab_size"] = num_embeddings(tokenizer)
            config = SIZES["tiny"].model_copy(update=shape)
            save_model_folder(model, Bert.for_pretraining(config), tokenizer, "# A card\n")
            changed = {option: model, "study": "masking_rate", "variants": "0.15"}
            if option == "start_from":
                changed["preset"] = "adapt"
            settings = ablation_settings(tmp_path, inputs, **changed)
            settings = settings.model_copy(update={"name": None})
            with opened_ablation(settings, open_storage(str(tmp_path))) as ablation:
                names.add(ablation.folder.name)
    assert len(names) == 4


def test_wrong_data_is_refused_before_anything_is_made(tmp_path, inputs):
    for changed, expected in (
        ({"task": "classification=/nowhere"}, "/nowhere"),
        ({"task": f"mrpc={inputs / 'data'}"}, "no column"),
        ({"study": "masking", "rows__objective": "left_to_right"}, "varies masks"),
        ({"rows__input_format": "full_sentences"}, "needs pairs of segments"),
    ):
        with pytest.raises(UserError, match=expected), opened(tmp_path, inputs, **changed):
            pass
    assert not list(tmp_path.glob("*/*/"))


def test_its_settings_name_no_path_and_make_the_same_ablation(tmp_path, inputs):
    with opened(tmp_path, inputs) as ablation:
        text = ablation.folder.settings.read_text()
        recipe = json.loads(ablation.folder.recipe.read_text())
    assert str(inputs) not in text and "classification=data" in text
    learned = recipe["tasks"]["classification"]
    assert learned["epochs"] == 2 and learned["dropout"]["attention_probs_dropout_prob"] == 0.1
    assert "at_once" not in json.dumps(recipe)
    task = f"classification={inputs / 'data'}"
    copy = tmp_path / "copy.yaml"
    copy.write_text(text)
    again = ["--preset", str(copy), "--task", task, "--shards", str(inputs / "corpus")]
    with opened_ablation(parse(again), open_storage(str(tmp_path))) as same:
        assert json.loads(same.folder.recipe.read_text()) == recipe


@pytest.fixture
def ablation(tmp_path, inputs):
    with opened(tmp_path, inputs) as ablation:
        yield ablation


def test_an_ablation_keeps_its_run_at_mlflow(ablation, tmp_path):
    first = ablation.tracked_run()
    assert first == ablation.tracked_run() and first.experiment == "ablations"
    assert first.run_name == "ablation" and first.params["study"] == "objective"
    assert first.params["tasks"] == "classification"
    assert first.tags["data.sha256"] == ablation.shards.data_hash
    assert str(tmp_path) not in "".join(first.params.values())


def test_figures_are_noted_once(ablation):
    variants = [variant.outcome for variant in ablation.variants]
    sweep = made_up_sweep("docs_library", variants, {"mlm": 20}, seeds=2)
    ablation.sweeps["docs_library"] = sweep
    figures = ablation.mean_figures()
    assert figures.keys() == {f"docs_library/{variant.name}" for variant in variants}
    scores = [trial.score for trial in sweep.trials if trial.point["variant"] == "mlm"]
    assert figures["docs_library/mlm"] == pytest.approx(sum(scores) / 2)
    for _ in range(2):
        note_figures(ablation)
    ablation.sweeps["docs_library"] = replace(sweep, trials=sweep.trials[1:])
    note_figures(ablation)
    records = list(read_records(ablation.folder.path / "journal.jsonl"))
    assert [(record.step, record.metrics) for record in records] == [
        (1, figures), (2, {"docs_library/mlm_nsp": sweep.trials[1].score})
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory, inputs):
    """The objectives' ablation: masked tokens alone and next tokens are trained to their end."""
    storage = tmp_path_factory.mktemp("storage")
    with opened(storage, inputs) as ablation:
        for planned in ablation.variants[1:]:
            options = {"rows.objective": planned.variant.name, "evaluation.every_steps": 3}
            train_here(Run(storage, planned.name, inputs / "corpus", 8, options))
            (planned.job.folder.path / "artifacts").mkdir()
            planned.finish()
        yield ablation


@pytest.mark.slow
def test_what_a_finished_one_came_to(trained):
    _, masked, next_tokens = (variant.outcome for variant in trained.variants)
    assert masked.is_finished and masked.name == "mlm" and masked.paper_row == "No NSP"
    assert [step for step, _ in masked.curve] == [3, 6, 8]
    assert masked.curve[-1][1] == masked.figures["heldout/masked_token_loss"]
    assert next_tokens.curve[-1][1] == next_tokens.figures["heldout/next_token_loss"]
    assert "heldout/masked_token_loss" not in next_tokens.figures
    assert masked.question != next_tokens.question
    assert masked.num_tokens > 8 * 8 and masked.seconds > 0 and masked.device == "cpu"
    assert masked.device_hours == pytest.approx(masked.seconds / 3600)


def test_what_is_planned_has_no_figures(trained):
    planned = trained.variants[0]
    planned.failure = "no luck"
    outcome = planned.outcome
    planned.failure = None
    assert not outcome.is_finished and outcome.failure == "no luck" and outcome.is_reference
    assert outcome.shape == "1/128/2" and outcome.curve == ()
    # The same masks on the same rows: the losses of the two compare.
    assert outcome.question == trained.variants[1].outcome.question
    # Word pieces, 32 places, 2 segments and a layer norm; one layer.
    embeddings = (trained.shards.vocab_size + 32 + 2 + 2) * 128
    layer = 12 * 128**2 + (4 + 4 + 1) * 128 + 4 * 128
    assert outcome.num_parameters == embeddings + layer


def test_a_row_of_the_table_says_how_far_it_is(trained):
    planned, _, finished = trained.variants
    planned.status = TrialStatus("running")
    assert variant_row(planned).cells == {
        "variant": "MLM + NSP", "state": "starting", "held-out loss": ""
    }  # fmt: skip
    progress = RunProgress(4, 8, {"heldout/masked_token_loss": 4.25})
    planned.status = TrialStatus("running", progress=progress)
    row = variant_row(planned)
    assert list(row.cells.values()) == ["MLM + NSP", "step 4 of 8", "4.250"]
    assert row.state == "running" and row.score is None
    stream = io.StringIO()
    progress = RunProgress(metrics={"heldout/next_token_loss": 3.5})
    finished.status = TrialStatus("trained", progress=progress)
    with SweepTable(trained.variants, stream, row=variant_row, called="pre-trainings") as table:
        table.show()
        table._logged -= 61
        table.show()
    ended, summary = stream.getvalue().splitlines()
    assert ended.startswith("left to right  pre-trained, ") and ended.endswith("loss 3.500")
    assert summary == "2 of 3 pre-trainings done  1 running  ETA …"
    checkpoints, moved = finished.job.folder.checkpoints, finished.job.folder.path / "moved"
    checkpoints.rename(moved)
    again = variant_row(finished)
    moved.rename(checkpoints)
    assert again.result in ended, "the table of every second has hashed the whole checkpoint"
    planned.status, finished.status = TrialStatus(), TrialStatus()
