"""docs/benchmarks.md and README.md's table say what the committed results say."""

import json
import re
import shutil
import subprocess

import pytest

from benchmarks import readme
from benchmarks.pretraining.rounds import TrainingArm, figures, summary

LINK = re.compile(r"\]\(([^)\s]+)\)")
PEAKS = {"matmul_flops_per_second": 788e12, "data_sheet_flops_per_second": 989.4e12}


@pytest.fixture
def copy(repository, tmp_path):
    """The files that the command reads and writes."""
    shutil.copy(repository / "README.md", tmp_path)
    shutil.copytree(repository / readme.RESULTS, tmp_path / readme.RESULTS)
    shutil.copytree(repository / "docs", tmp_path / "docs")
    return tmp_path


def change(root, name, values):
    """Merges values into a file of results, creating it if needed."""
    path = root / readme.RESULTS / f"{name}.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(result | values))


def page_of(root):
    assert readme.main([], root) == 0
    assert readme.main(["--check"], root) == 0
    return (root / readme.PAGE).read_text()


def test_both_files_are_as_generated():
    """If this fails: run `python -m benchmarks.readme` and look at what it changed."""
    assert readme.main(["--check"]) == 0


def test_links_and_pictures_are_there(repository):
    page = repository / readme.PAGE
    links = {link.partition("#")[0] for link in LINK.findall(page.read_text())} - {""}
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings
    }
    for text in (page.read_text(), (repository / "README.md").read_text()):
        used = re.findall(r"\((?:docs/benchmarks\.md)?#([\w-]+)\)", text)
        assert used and set(used) <= anchors


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("name", "written_to"),
    [
        ("pretraining-cpu-mini", ["docs/benchmarks.md", "README.md"]),
        ("pretraining-cpu-tiny", ["docs/benchmarks.md"]),
    ],
)
def test_a_changed_result_is_reported_until_it_is_written(copy, capsys, name, written_to):
    arms = json.loads((copy / readme.RESULTS / f"{name}.json").read_text())["arms"]
    change(copy, name, {"arms": arms | {"ours": arms["ours"] | {"tokens_per_second": 12_345_678}}})
    before = (copy / "README.md").read_text()
    assert readme.main(["--check"], copy) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].removeprefix(f"{copy}/") for line in lines] == written_to
    assert (copy / "README.md").read_text() == before
    assert "| 12,345,678 |" in page_of(copy)


@pytest.mark.slow
def test_prose_around_the_table_stays_and_a_change_inside_is_reported(copy):
    path = copy / "README.md"
    path.write_text(path.read_text().replace("| 5,233 tokens/s |", "| 6,233 tokens/s |") + "End.\n")
    assert readme.main(["--check"], copy) == 1
    page_of(copy)
    assert path.read_text().endswith("End.\n") and "6,233" not in path.read_text()


@pytest.mark.parametrize("broken", ["results", "markers"])
def test_what_cannot_be_written_is_one_line(copy, capsys, broken):
    if broken == "results":
        (copy / readme.RESULTS / "data-cpu.json").unlink()
    else:
        text = (copy / "README.md").read_text().replace(readme.END, "")
        (copy / "README.md").write_text(text)
    assert readme.main([], copy) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and ("data-cpu" in error or "README.md" in error)


def arm(name, seconds):
    return TrainingArm(
        name,
        name.startswith("transformers"),
        lambda: None,
        seconds=[seconds] * 3,
        rounds=[[seconds] * 20] * 3,
        peak_bytes=int(400e9 * seconds),
        compile_seconds=40.0,
    )


def measured(**values):
    """A result as `benchmarks.pretraining` writes it on a GPU."""
    arms = [arm("ours, fast", 0.08), arm("transformers, sdpa", 0.5)]
    settings = {"device": "cuda", "preset": "base", "vocab": 30_522, "batch": 16}
    settings |= {"sequence_length": 512, "lengths": "natural"}
    around = {"device": "NVIDIA H200", "threads": 16, "torch": "2.11", "transformers": "5.17"}
    return {
        "settings": settings | {"dropout": 0.1, "attention_dropout": 0.0},
        "surroundings": around,
        "rows_per_step": 256,
        "arms": summary(arms, tokens=65_754, model_flops=36e12, peaks=PEAKS),
        **values,
    }


@pytest.mark.slow
def test_a_gpu_result_is_shown_with_both_utilizations_and_its_limits(copy):
    assert "Not measured yet" in page_of(copy)
    change(copy, "pretraining-cuda-killed", {"arms": {"ours, fast": {"loss": 1.0}}})
    assert "Not measured yet" in page_of(copy)
    result = measured(unfinished=True, left_out=["ours, x"], failed={"ours, y": "why"})
    result["arms"]["ours, fast"] |= {"steady": False, "spread_of_rounds": 0.052}
    change(copy, "pretraining-cuda-a", result)
    page = page_of(copy)
    assert "Not measured yet" not in page
    assert "| ours, fast | 821,925 | 57% | 45% | 32 |  |" in page  # 36e12 / 0.08 of either peak
    assert "| transformers, sdpa | 131,508 | 9% | 7% | 200 | 6.25 times as fast |" in page
    text = " ".join(page.split())
    assert "unfinished; left out: ours, x; failed: ours, y; rounds differ: ours, fast 5%)" in text
    assert "256 rows of up to 512" in text and "in bfloat16" in text


def test_an_ablation_has_a_row_for_each_technique(copy):
    row = figures(arm("padded", 0.16), tokens=65_754, model_flops=36e12, peaks=PEAKS)
    rows = {"packing": {"without": "packing: padded rows", **row, "ratio": 2.0}}
    change(copy, "pretraining-cuda-b", measured(ablation=rows))
    row = "| without packing: padded rows | 410,962 | 29% | 23% | 64 | 2.00 times as fast |"
    assert row in page_of(copy)


def test_an_encoder_run_is_shown_with_its_picture_and_its_tasks(copy):
    end = {"masked_token_loss": 3.456, "unigram_loss": 7.014}
    end |= {"masked_token_accuracy": 0.4321, "next_sentence_accuracy": 0.876}
    both = {"pre-trained": 0.8512, "untrained": 0.8, "difference": 0.0512, "low": 0.02, "high": 0.1}
    stage = {"criterion": "f1", "examples": {"train": 3668}, "compared": both}
    recipe = {"size": "small", "sequence_length": 128, "finetuning_rows": 32}
    counts = {"parameters": 28_800_000, "vocabulary": 16_384, "step": 11_000, "rows_per_step": 580}
    counts |= {"tokens": 780_000_000, "train_tokens": 30_000_000, "seconds": 390.0, "flops": 7.8e16}
    result = {
        "settings": {"device": "cuda", "epochs": 3}
        | {"recipe": recipe | {"finetuning_learning_rate": 1e-4}},
        "surroundings": {"device": "the card", "torch": "2.11"},
        "matmul_flops_per_second": 8e14,
        "pretraining": counts | {"heldout": [{}, end]},
        "finetuning": {"mrpc": stage, "sst2": stage | {"compared": None}},
    }
    change(copy, "encoder-run-cuda", result)
    page = page_of(copy)
    assert "](encoder-run-cuda.svg)" in page and "Not measured on a GPU" not in page
    row = "| `small`, 29 M, 16,384 words | 11,000 | 780 M | 6.5 | 3.46 | 7.01 | 43.2% | 87.6% |"
    assert row in page
    assert "| MRPC | 3,668 x 3 | F1 | 85.1 | 80.0 | +5.1 (+2.0 to +10.0) |" in page
    assert "| SST-2 |" not in page  # not finished
    assert "2,000,000 real tokens/s (25% MFU)" in " ".join(page.split())


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [
        ("extraction-cpu", {"same_after_kill": False}, "**other features**"),
        ("swaps-cpu", {"failures": ["503"], "requests": 7}, "Of 7 requests 1 failed"),
    ],
)
def test_a_bad_result_is_not_hidden(copy, name, values, shown):
    change(copy, name, values)
    assert shown in " ".join(page_of(copy).split())


@pytest.mark.parametrize(
    "target", ["bench", "bench-finetuning", "bench-features", "bench-serving", "bench-tuning"]
)
def test_make_targets_end_with_it(repository, target):
    command = ["make", "--no-print-directory", "--dry-run", target, "ENCODER=x"]
    said = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True)
    assert said.stdout.splitlines()[-1].endswith("python -m benchmarks.readme")
