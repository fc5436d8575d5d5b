import json
import shutil

import pytest

from benchmarks.scaling import __main__ as scaling
from benchmarks.scaling.document import PICTURE, chosen, rates_of


@pytest.fixture
def copy(repository, tmp_path):
    """What the command reads and writes, to be changed."""
    (tmp_path / "docs").mkdir()
    for name in ("scaling.md", PICTURE):
        shutil.copy(repository / "docs" / name, tmp_path / "docs")
    (tmp_path / "benchmarks").mkdir()
    shutil.copytree(repository / "benchmarks/results", tmp_path / "benchmarks/results")
    return tmp_path


def measure(root, **tokens_per_second):
    """Writes results as if these models had been measured on an H200."""
    for preset, rate in tokens_per_second.items():
        result = {
            "settings": {"preset": preset, "sequence_length": 128},
            "surroundings": {"device": "NVIDIA H200"},
            "model_flops_per_step": 65_536 * {"base": 0.54e9, "large": 1.88e9}[preset],
            "real_tokens_per_step": 65_536,
            "arms": {"ours, fast": {"tokens_per_second": rate}, "transformers": {}},
        }
        path = root / f"benchmarks/results/pretraining-cuda-{preset}-of-a-test.json"
        path.write_text(json.dumps(result))


def test_the_document_is_what_the_model_says():
    """Where it is not: `python -m benchmarks.scaling --write`, and look at what it changed."""
    assert scaling.main(["--check"]) == 0


def test_a_figure_changed_by_hand_is_named(copy, capsys):
    path = copy / "docs/scaling.md"
    path.write_text(path.read_text().replace("| large | 8 |", "| large | 9 |"))
    assert scaling.main(["--check"], copy) == 1
    assert "scaling.md" in capsys.readouterr().out


def test_a_picture_of_other_figures_is_named(copy, capsys):
    path = copy / "docs" / PICTURE
    path.write_text(path.read_text().replace("curves ", "curves 0"))
    assert scaling.main(["--check"], copy) == 1
    assert PICTURE in capsys.readouterr().out


def test_what_was_measured_takes_the_place_of_what_was_assumed(copy, capsys):
    for path in (copy / "benchmarks/results").glob("pretraining-cuda-*.json"):
        path.unlink()
    assert len(rates_of(copy)) == 3
    measure(copy, base=800_000)
    assert len(rates_of(copy)) == 3  # the document tells of both models
    measure(copy, base=800_000, large=220_000)
    (rate,) = rates_of(copy)
    assert rate.of("large", 512) == pytest.approx(220_000 * 1.88e9)
    assert chosen([rate]).label == "measured"
    assert scaling.main(["--check"], copy) == 1
    assert scaling.main(["--write"], copy) == 0
    assert scaling.main(["--check"], copy) == 0
    text = (copy / "docs/scaling.md").read_text()
    assert "hours, measured" in text and "assumption here" not in text


def test_what_was_measured_on_another_card_is_no_rate_of_this_one(copy):
    before = [rate.flops_per_second for rate in rates_of(copy)]
    measure(copy, base=8e9, large=2e9)
    for path in (copy / "benchmarks/results").glob("*-of-a-test.json"):
        path.write_text(path.read_text().replace("H200", "H100"))
    assert [rate.flops_per_second for rate in rates_of(copy)] == before
