import json

import pytest
from ablation_runs import ablation_settings, write_inputs
from pretraining_runs import Run
from pretraining_runs import train_here as pretrain_here

from bert_core.errors import UserError
from bert_core.text.shards import open_shards
from workflows.ablations.ablation import described_recipe, opened_ablation
from workflows.ablations.settings import parse
from workflows.pretrain import opened_pretraining
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))


def opened(storage, inputs, **changed):
    settings = ablation_settings(storage, inputs, **changed)
    return opened_ablation(settings, open_storage(str(storage)))


def test_a_variant_is_the_run_that_pretrain_makes(tmp_path, inputs):
    with opened(tmp_path, inputs) as ablation:
        names = {each.variant.name: each.name for each in ablation.variants}
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


def test_what_is_left_is_what_has_no_model_folder(tmp_path, inputs):
    with opened(tmp_path, inputs) as ablation:
        first = ablation.left()[0]
        assert first.variant.name == "left_to_right", "it predicts all tokens: the longest"
        assert len(ablation.left()) == 3
        run = Run(tmp_path, first.name, inputs / "corpus", 8, {"rows.objective": "left_to_right"})
        pretrain_here(run)
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


def test_wrong_data_is_refused_before_anything_is_made(tmp_path, inputs):
    for changed, expected in (
        ({"task": "classification=/nowhere"}, "/nowhere"),
        ({"task": f"mrpc={inputs / 'data'}"}, "no column"),
        ({"study": "masking", "rows__objective": "left_to_right"}, "masks nothing"),
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
    assert recipe["tasks"]["classification"]["epochs"] == 2
    assert "at_once" not in json.dumps(recipe)
    task = f"classification={inputs / 'data'}"
    copy = tmp_path / "copy.yaml"
    copy.write_text(text)
    again = ["--preset", str(copy), "--task", task, "--shards", str(inputs / "corpus")]
    with opened_ablation(parse(again), open_storage(str(tmp_path))) as same:
        assert json.loads(same.folder.recipe.read_text()) == recipe


def test_the_time_of_all_starts_counts(tmp_path, inputs):
    with opened(tmp_path, inputs) as ablation:
        assert ablation.seconds() == 0
        ablation.add_seconds(2.5)
    with opened(tmp_path, inputs) as ablation:
        ablation.add_seconds(1.0)
        assert ablation.outcome(at_once=2).wall_seconds == 3.5
        assert ablation.outcome(at_once=2).reference.name == "mlm_nsp"


def test_the_recipe_is_said_in_sentences(tmp_path, inputs):
    trained, learned = described_recipe(ablation_settings(tmp_path, inputs))
    assert "8 steps of 8 rows of 32 tokens, seed 0." in trained and "tiny" in trained
    assert "2 epochs in batches of 32, peak learning rate 0.001" in learned
