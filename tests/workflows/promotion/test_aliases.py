import pytest
from registered_models import DATA_SHA256, NAME, copy_store, store_of_models, store_of_names

from bert_core.errors import UserError
from workflows.promotion.aliases import CHAMPION, open_registry
from workflows.tracking.mlflow_run import open_client


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    return store_of_names(tmp_path_factory.mktemp("names"))


@pytest.fixture
def registry(uri):
    with open_registry(NAME, uri) as opened:
        yield opened


def test_the_alias_is_moved_and_read(registry, uri):
    assert registry.state().champion is None
    for number in (2, 1):
        registry.move_champion(number)
        assert registry.state().champion == number
        assert open_client(uri).get_model_version_by_alias(NAME, CHAMPION).version == number
    with pytest.raises(UserError, match="version=9"):
        registry.move_champion(9)
    assert registry.state().champion == 1


def test_tags_of_the_model_are_written_and_removed(registry):
    registry.set_tag("bertline.some", "thing, ü")
    assert registry.state().tags["bertline.some"] == "thing, ü"
    registry.delete_tag("bertline.some")
    registry.delete_tag("bertline.some")
    assert "bertline.some" not in registry.state().tags


def test_tags_of_a_version_are_replaced_by_their_prefix(registry, uri):
    registry.replace_version_tags(1, "gate.", {"gate.a": "1", "gate.b": "2"})
    open_client(uri).set_model_version_tag(NAME, "1", "other", "stays")
    registry.replace_version_tags(1, "gate.", {"gate.b": "3"})
    assert open_client(uri).get_model_version(NAME, "1").tags == {"gate.b": "3", "other": "stays"}


def test_versions_go_by_number_and_by_alias(registry, uri):
    open_client(uri).set_registered_model_alias(NAME, "challenger", "3")
    assert registry.version("2").number == 2
    assert registry.version("challenger").number == 3
    assert sorted(registry.versions()) == [1, 2, 3]
    with pytest.raises(UserError, match=r"unknown version of sentiment: 4 \(there are 1, 2, 3\)"):
        registry.version("4")
    with pytest.raises(UserError, match="alias of sentiment, did you mean challenger: challanger"):
        registry.version("challanger")


def test_a_version_says_what_was_recorded_of_it(tmp_path):
    with open_registry(NAME, copy_store(store_of_models(), tmp_path)) as registry:
        version = registry.version("3")
    assert version.metrics == {"accuracy": 0.1}
    assert version.data_sha256 == DATA_SHA256 and version.run_id is not None


def test_what_is_not_there_is_said_in_one_line(uri, tmp_path):
    with (
        pytest.raises(UserError, match="unknown model, did you mean sentiment: sentimant"),
        open_registry("sentimant", uri),
    ):
        pass
    missing = tmp_path / "mlflow.db"
    with (
        pytest.raises(UserError, match="no MLflow store at"),
        open_registry(NAME, f"sqlite:///{missing}"),
    ):
        pass
    assert not missing.exists()
    with pytest.raises(UserError) as caught, open_registry(NAME, "http://127.0.0.1:9"):
        pass
    assert "\n" not in str(caught.value)
