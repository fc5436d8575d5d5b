import pytest
from pydantic import ValidationError

from bert_core.errors import UserError
from workflows.ablations.settings import AblateSettings
from workflows.finetuning.settings import settings_class
from workflows.paper.suite_settings import Table7Settings
from workflows.pretraining.settings import PretrainSettings
from workflows.settings import parse_command_line
from workflows.sweeps.settings import tune_settings_class
from workflows.training.run_settings import RunSettings


def test_what_belongs_to_a_machine_is_not_repeated():
    settings = RunSettings(name="run", storage="/here", tracking={"uri": "http://here"}, seed=3)
    portable = settings.portable()
    assert not {"name", "storage", "fresh", "profile"} & portable.keys()
    assert "uri" not in portable["tracking"]
    assert portable["seed"] == 3 and portable["cluster"]["num_workers"] == 1


@pytest.mark.parametrize("name", ["a/b", "../up", "", ".hidden"])
def test_a_name_is_that_of_a_folder(name):
    with pytest.raises(ValidationError, match="name"):
        RunSettings(name=name)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (settings_class("sst2"), {"task": "sst2", "data": "data", "model": "model"}),
        (tune_settings_class("sst2"), {"task": "sst2", "data": "data", "model": "model"}),
        (AblateSettings, {"study": "objective"}),
        (Table7Settings, {"data": "data", "model": "model"}),
    ],
)
def test_on_tpu_there_is_pretraining_alone(kind, values):
    kind(**values)
    tpu = {"cluster": {"tpu": "v5e", "topology": "4x4"}}
    with pytest.raises(ValidationError, match="only pre-training, .* runs on TPU"):
        kind(**values, **tpu)
    assert PretrainSettings(**tpu).cluster.num_workers == 4
    # A profile also speaks of batches, which only pre-training has.
    options = [f"--{name}={value}" for name, value in values.items()]
    with pytest.raises(UserError, match="only pre-training, .* runs on TPU"):
        parse_command_line(kind, [*options, "--profile", "tpu-v5e-16"])
