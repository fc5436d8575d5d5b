"""The newest version is asked about once a minute, and what was known outlives a silence."""

import pytest

from serving import newest_versions
from serving.newest_versions import AGAIN_SECONDS, NewestVersions
from serving.pointers import Address, UnreachableError

CHAMPION = Address.of("models:/mood@champion")


@pytest.fixture
def told(monkeypatch):
    """What MLflow says, whom it was asked about, and what time it is."""

    class Told:
        says, asked, now = 3, [], 100.0

        def ask(self, name, tracking_uri):
            self.asked.append((name, tracking_uri))
            if self.says is None:
                raise UnreachableError("no answer", "there", "wait")
            return self.says

    found = Told()
    found.asked = []
    monkeypatch.setattr(newest_versions.time, "monotonic", lambda: found.now)
    return found


def test_it_is_asked_once_a_minute_for_all_aliases_of_a_model(told):
    newest = NewestVersions("sqlite:///x", told.ask)
    assert newest.of(CHAMPION) == 3
    told.says, told.now = 4, told.now + AGAIN_SECONDS - 1
    assert newest.of(Address.of("models:/mood@challenger")) == 3
    told.now += 1
    assert newest.of(CHAMPION) == 4
    assert told.asked == [("mood", "sqlite:///x")] * 2
    assert newest.of(Address.of("models:/other@champion")) == 4
    assert told.asked[-1][0] == "other"


def test_where_mlflow_is_silent_what_it_said_stays(told):
    newest = NewestVersions("sqlite:///x", told.ask)
    told.says = None
    assert newest.of(CHAMPION) is None
    for says, known in ((5, 5), (None, 5)):
        told.says, told.now = says, told.now + AGAIN_SECONDS
        assert newest.of(CHAMPION) == known


def test_a_version_by_its_number_is_meant_to_stay(told):
    assert NewestVersions("sqlite:///x", told.ask).of(Address.of("models:/mood/2")) is None
    assert told.asked == []
