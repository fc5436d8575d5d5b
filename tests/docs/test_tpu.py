"""docs/tpu.md says of the profiles what they are, and quotes errors as they come."""

import pytest
import yaml
from pydantic import ValidationError

from workflows.clusters.settings import ClusterSettings, tpu_slice
from workflows.settings import LAYERS


@pytest.fixture(scope="module")
def text(repository):
    return (repository / "docs" / "tpu.md").read_text(encoding="utf-8")


def test_the_table_of_profiles_is_that_of_the_files(text):
    slices = []
    for path in LAYERS["profile"].glob("tpu-*.yaml"):
        cluster = yaml.safe_load(path.read_text())["cluster"]
        slices.append((tpu_slice(cluster["tpu"], cluster["topology"]), path.stem))
    slices.sort(key=lambda each: (each[0].generation, each[0].num_chips))
    rows = [
        f"| `{name}` | {one.num_chips} | {one.num_hosts} | {one.topology} |" for one, name in slices
    ]
    assert rows == [line for line in text.splitlines() if line.startswith("| `tpu-")]


def test_an_error_is_quoted_as_it_comes(text):
    with pytest.raises(ValidationError) as caught:
        ClusterSettings(tpu="v5e", topology="4x4", num_workers=3)
    quoted = "a slice v5e 4x4 has 4 hosts with one worker each: 3 workers do not fit 1 slice"
    assert quoted in str(caught.value) and quoted in text
