import pytest
from pydantic import ValidationError

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
