import numpy as np
import pytest
import torch

from bert_core.features.inspection import AttentionMaps
from workflows.paper.pictures import plot_attention, plot_map, project


def test_pictures_are_written_and_the_same_again(tmp_path):
    maps = AttentionMaps(["[CLS]", "a", "[SEP]"], torch.rand(2, 3, 3, 3).softmax(-1))
    draw = np.random.default_rng(0)
    states = {layer: draw.normal(size=(40, 8)).astype(np.float32) for layer in (0, 2)}
    labels = [f"label {number % 11}" for number in range(40)]  # more than there are colours
    for name in ("a", "b"):
        plot_attention(maps, tmp_path / f"{name}.png", title="tiny")
        plot_map(states, labels, tmp_path / f"{name}-map.png", projection="tsne", title="tiny")
    for kind in ("", "-map"):
        first, second = ((tmp_path / f"{name}{kind}.png").read_bytes() for name in "ab")
        assert first.startswith(b"\x89PNG")
        assert first == second


@pytest.mark.parametrize("projection", ["pca", "tsne"])
def test_what_lies_together_stays_together(projection):
    draw = np.random.default_rng(0)
    centers = 20 * draw.normal(size=(2, 10))
    vectors = np.repeat(centers, 20, axis=0) + draw.normal(size=(40, 10))
    points = project(vectors.astype(np.float32), projection)
    assert points.shape == (40, 2)
    within = np.linalg.norm(points[:20] - points[:20].mean(0), axis=1).max()
    between = np.linalg.norm(points[:20].mean(0) - points[20:].mean(0))
    assert between > 2 * within


def test_a_few_points_are_enough():
    assert project(np.eye(3, 4, dtype=np.float32), "tsne").shape == (3, 2)
