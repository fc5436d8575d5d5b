import json
import shutil
import subprocess
from dataclasses import asdict

import pytest

from benchmarks.readme import __main__ as readme
from benchmarks.tracking import MODES, Figures


@pytest.fixture
def copy(repository, tmp_path):
    """The README and all that it quotes, to be changed."""
    shutil.copy(repository / "README.md", tmp_path)
    shutil.copytree(repository / readme.RESULTS, tmp_path / readme.RESULTS)
    shutil.copytree(repository / "docs", tmp_path / "docs")
    assert readme.main(["--check"], tmp_path) == 0
    return tmp_path


def change(root, name, **values):
    """Writes other values into a file of results, or into its arms by their names."""
    path = root / readme.RESULTS / f"{name}.json"
    result = json.loads(path.read_text())
    result["arms"] = {arm: figures | values.get(arm, {}) for arm, figures in result["arms"].items()}
    path.write_text(json.dumps(result))


def prose_of(root):
    return readme._BLOCK.sub("", (root / "README.md").read_text())


def test_the_readme_says_what_the_committed_results_say():
    """Where it does not: `python -m benchmarks.readme`, and look at what it changed."""
    assert readme.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("name", "block", "said"),
    [
        ("data-cpu", "data", "59.1 MB/s"),
        ("pretraining-cpu-tiny", "pretraining", "| 12,345,678 |"),
        ("pretraining-cpu-mini", "pretraining", "| 12,345,678 |"),
        ("pretraining-cpu-mini-8192", "pretraining", "| 12,345,678 |"),
    ],
)
def test_a_changed_figure_is_named_until_it_is_written(copy, capsys, name, block, said):
    change(copy, name, ours={"tokens_per_second": 12_345_678})
    before, prose = (copy / "README.md").read_text(), prose_of(copy)
    assert readme.main(["--check"], copy) == 1
    assert [line.split("'")[1] for line in capsys.readouterr().out.splitlines()] == [block]
    assert (copy / "README.md").read_text() == before
    assert readme.main([], copy) == 0
    assert said in (copy / "README.md").read_text()
    assert prose_of(copy) == prose
    assert readme.main(["--check"], copy) == 0


def test_a_figure_changed_by_hand_is_named(copy, capsys):
    text = (copy / "README.md").read_text()
    (copy / "README.md").write_text(text.replace("times as fast", "times as swift"))
    assert readme.main(["--check"], copy) == 1
    assert "'pretraining'" in capsys.readouterr().out


def test_loading_is_told_once_it_was_measured(copy):
    path = copy / readme.RESULTS / "data-cpu.json"
    result = json.loads(path.read_text())
    result.pop("loading", None)
    path.write_text(json.dumps(result))
    without = readme.data_block(copy)
    assert "staged" not in without
    alone = {"tokens_per_second": 18_400_000.0, "fill": 0.9961}
    ratios = {"of_staged": 0.987, "of_staged_of_rounds": [1.01, 0.94, 0.987]}
    result["loading"] = {"alone": alone, "settings": {"preset": "tiny"}, **ratios}
    path.write_text(json.dumps(result))
    added = readme.data_block(copy).removeprefix(without)
    assert "18.4 M tokens/s" in added and "99.6% full" in added and "`tiny`" in added
    assert "0.99 of the rate" in added and "0.94 to 1.01 over 3 rounds" in added


def test_tracking_is_left_out_until_it_was_measured(copy):
    path = copy / readme.RESULTS / "tracking-cpu.json"
    path.unlink(missing_ok=True)
    assert readme.tracking_block(copy) == ""
    cases = [asdict(Figures(case, 60, 20.0, 20.5, 1.025, 0, case != "full")) for case in MODES]
    figures = {"threads": 2, "cases": cases, "start_ratio": 1.01, "start_seconds": 31.4}
    path.write_text(json.dumps(figures))
    block = readme.tracking_block(copy)
    assert "| well | 20.00 | 20.50 | 1.025 times as long | yes |" in block
    assert "| full | 20.00 | 20.50 | 1.025 times as long | **no** |" in block
    assert "For the 31 s in which the sender starts: 1.010 times" in block
    assert readme.main(["--check"], copy) == 1


def test_a_curve_needs_its_picture(copy, capsys):
    (copy / readme.CURVE_PICTURE).unlink(missing_ok=True)
    (copy / readme.RESULTS / "learning-curve-mini.json").write_text("{}")
    assert readme.main([], copy) == 2
    assert readme.CURVE_PICTURE in capsys.readouterr().err


def test_results_that_are_not_there(copy, capsys):
    (copy / readme.RESULTS / "data-cpu.json").unlink()
    assert readme.main(["--check"], copy) == 2
    assert "data-cpu.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<!-- figures: data -->\n", ""),
        ("<!-- figures: data -->", "<!-- figures: date -->"),
        ("<!-- figures: data -->", "<!-- figures: tracking -->"),
        ("(load average", "<!-- end of figures -->"),
        ("<!-- figures: pretraining -->", "<!-- figures: pretraining-->"),
    ],
)
def test_a_block_that_is_not_whole_is_refused_and_nothing_written(copy, capsys, old, new):
    text = (copy / "README.md").read_text()
    assert old in text
    (copy / "README.md").write_text(text.replace(old, new))
    assert readme.main([], copy) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (copy / "README.md").read_text() == text.replace(old, new)


def test_make_bench_ends_with_it(repository):
    command = ["make", "--no-print-directory", "--dry-run", "bench"]
    said = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True)
    assert said.stdout.splitlines()[-1].endswith("python -m benchmarks.readme")
