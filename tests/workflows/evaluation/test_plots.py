from xml.etree import ElementTree

import numpy as np
import pytest
from hostile_labels import HOSTILE_LABELS
from matplotlib import colormaps
from matplotlib.image import imread

from bert_core.evaluation.calibration import measured_calibration
from bert_core.evaluation.confusion import ConfusionMatrix
from workflows.evaluation.plots import plot_confusion, plot_reliability


@pytest.fixture
def calibrated():
    random = np.random.default_rng(0)
    sure = 0.5 + 0.5 * random.beta(3, 1, 500)
    correct = (random.random(500) < sure - 0.1).astype(float)
    return measured_calibration(sure, correct, brier_score=0.25)


def matrix_of(num):
    counts = np.random.default_rng(0).integers(1000, 2000, (num, num))
    return ConfusionMatrix(tuple(f"class {number}" for number in range(num)), counts)


def labels_of(path):
    text = path.read_text()
    ElementTree.fromstring(text)
    return {part.split(" -->")[0] for part in text.split("<!-- ")[1:]}


def test_a_confusion_matrix_names_its_classes_and_counts(tmp_path):
    matrix, path = matrix_of(3), tmp_path / "new" / "confusion.svg"
    plot_confusion(matrix, path, title="dev")
    counts = {f"{count:,}" for count in matrix.counts.ravel().tolist()}
    assert {"dev", "found", "right answer", *matrix.names, *counts} <= labels_of(path)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_colours_are_shares_of_a_row(tmp_path):
    # The rare class is right as often as the frequent one: two cells each of two colours.
    path = tmp_path / "confusion.png"
    counts = np.array([[900, 100], [1, 9]])
    plot_confusion(ConfusionMatrix(("many", "few"), counts), path, title="")
    image = (imread(path) * 255).round().astype(np.uint8)
    areas = [
        (image == colormaps["Blues"](share, bytes=True)).all(axis=2).sum() for share in (0.9, 0.1)
    ]
    assert min(areas) > image[..., 0].size / 10
    assert areas[0] == pytest.approx(areas[1], rel=0.1)


def test_many_classes_have_no_numbers(tmp_path):
    matrix, path = matrix_of(41), tmp_path / "confusion.svg"
    plot_confusion(matrix, path, title="many")
    labels = labels_of(path)
    assert set(matrix.names) <= labels
    assert f"{matrix.counts[0, 0]:,}" not in labels


def test_classes_nobody_has_seen(tmp_path):
    matrix = ConfusionMatrix(("a", "b"), np.zeros((2, 2), dtype=np.int64))
    plot_confusion(matrix, tmp_path / "confusion.png", title="empty")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_a_reliability_diagram_says_how_far_off(calibrated, tmp_path):
    path = tmp_path / "reliability.svg"
    plot_reliability(calibrated, path, title="dev")
    labels = labels_of(path)
    assert {"dev", "confidence", "accuracy", "decisions"} <= labels
    assert any(f"ECE {calibrated.expected_error:.3f}" in label for label in labels)
    again = tmp_path / "again.svg"
    plot_reliability(calibrated, again, title="dev")
    assert labels_of(again) == labels
    plot_reliability(calibrated, tmp_path / "reliability.png", title="dev")
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
def test_any_label_is_drawn_as_it_is(tmp_path):
    num = len(HOSTILE_LABELS)
    matrix = ConfusionMatrix(HOSTILE_LABELS, np.eye(num, dtype=np.int64))
    plot_confusion(matrix, tmp_path / "a.svg", title="$x$ against $\\y$")
    shown = labels_of(tmp_path / "a.svg")
    assert {"$x$", "$$", r"$\frac$", "R&amp;D", "$x$ against $\\y$"} <= shown
    plot_confusion(matrix, tmp_path / "a.png", title="$")
