import pytest
import yaml
from finetuning_runs import arguments

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.tasks.catalog import TASKS
from workflows.finetune import parse
from workflows.finetuning.settings import (
    FeatureSettings,
    FinetuneSettings,
    read_settings,
    settings_class,
)
from workflows.settings import field_names


def test_the_defaults_are_the_papers(tmp_path):
    settings = parse(arguments(tmp_path)[:6])
    assert (settings.batch_size, settings.epochs) == (32, 3)
    assert settings.optimizer.peak_learning_rate == 3e-5
    assert settings.optimizer.warmup_share == 0.1
    assert settings.for_encoder(ModelConfig()).dropout.hidden_dropout_prob == 0.1


@pytest.mark.parametrize("task", TASKS)
def test_a_worker_reads_what_the_driver_wrote(task, tmp_path):
    settings = parse([*arguments(tmp_path), "--task", task])
    assert read_settings(settings.model_dump(mode="json")) == settings
    assert type(settings.options) is type(TASKS[task])


def test_every_setting_is_explained():
    settings = settings_class("classification")
    assert all(field.description for name, field in settings.model_fields.items() if "." in name)
    assert {"options.max_length", "dropout.hidden_dropout_prob"} <= set(field_names(settings))


def test_places_and_machines_are_no_part_of_the_recipe(tmp_path):
    settings = parse(arguments(tmp_path))
    other = parse(arguments(tmp_path / "b", name="other", cluster__num_workers=2, max_tokens=512))
    assert settings.recipe() == other.recipe()
    assert parse(arguments(tmp_path, seed=1)).recipe() != settings.recipe()
    assert parse(arguments(tmp_path, **{"options.max_length": 16})).recipe() != settings.recipe()
    dropping = parse(arguments(tmp_path, **{"options.drop_labels": "-"})).recipe()
    assert dropping["options"]["drop_labels"] == ["-"]
    assert "drop_labels" not in settings.recipe()["options"], "older runs had none"
    assert str(tmp_path) not in str(settings.portable())


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(UserError, match=r"unknown task, did you mean cola: --task colas"):
        settings_class("colas")
    assert issubclass(settings_class("rte"), FinetuneSettings)


def test_a_wrong_value_is_told_by_its_option_alone(tmp_path):
    with pytest.raises(UserError, match=r": --loss.class_weights \("):
        parse(arguments(tmp_path, loss__class_weights="Balanced"))


def test_a_settings_file_repeats_a_run(tmp_path):
    asked = ["--task", "conll2003", "--approach", "features", "--data", "d", "--model", "m"]
    settings = parse([*asked, "--strategy", "last", "--seed", "7", "--batch_size", "8"])
    file = tmp_path / "settings.yaml"
    file.write_text("# a comment\n" + yaml.safe_dump(settings.portable()))
    again = parse(["--preset", str(file), "--data", "e", "--model", "n"])
    assert isinstance(again, FeatureSettings)
    assert again.recipe() == settings.recipe() and again.portable() == settings.portable()
    other = parse([f"--preset={file}", "--data", "e", "--model", "n", "--batch_size", "16"])
    assert (other.batch_size, other.seed) == (16, 7), "what is said besides counts"


def test_only_a_settings_file_is_a_preset(tmp_path):
    with pytest.raises(UserError, match=r"no settings file: .* pre-training: --preset mini"):
        parse([*arguments(tmp_path), "--preset", "mini"])
    with pytest.raises(UserError, match="cannot be read"):
        parse([*arguments(tmp_path), "--preset", str(tmp_path / "none.yaml")])


def test_what_came_later_changes_a_recipe_only_where_it_is_used(tmp_path):
    given = ["--task", "mrpc", "--data", "d", "--model", "m"]
    plain = parse(given).recipe()
    for option, value, where in (
        ("--patience", "2", ("patience",)),
        ("--evaluation.every_steps", "50", ("evaluation", "every_steps")),
        ("--evaluation.metric", "loss", ("evaluation", "metric")),
        ("--optimizer.layer_decay", "0.9", ("optimizer", "layer_decay")),
        ("--freeze_layers", "2", ("freeze_layers",)),
        ("--reinit_layers", "1", ("reinit_layers",)),
        ("--loss.focal_gamma", "2", ("loss", "focal_gamma")),
    ):
        found = parse([*given, option, value]).recipe()
        assert found != plain
        before: object = plain
        for name in where:
            found = found[name]
            before = before.get(name) if isinstance(before, dict) else None
        assert str(found).removesuffix(".0") == value and before is None
    with pytest.raises(UserError, match="no layer learns"):
        parse([*NER_FEATURES, "--optimizer.layer_decay", "0.5"])


NER_FEATURES = ["--task", "ner", "--approach", "features", "--data", "d", "--model", "m"]
