from xml.etree import ElementTree

import numpy as np
import pytest

from workflows.runs.journal import Journal
from workflows.training.loss_plot import FINETUNING, NEXT_TOKENS, plot_losses, smoothed


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    for step in range(1, 101):
        loss = 9 - step / 30
        metrics = {"train/masked_token_loss": loss, "train/learning_rate": step * 1e-6}
        journal.append(step, metrics)
        if step % 20 == 0:
            journal.append(step, {"heldout/masked_token_loss": loss + 0.1})
    journal.close()
    return journal


def test_the_picture_names_what_it_shows(journal, tmp_path):
    output = tmp_path / "new" / "loss.svg"
    plot_losses(journal.path, output, title="a run", unigram_loss=6.94)
    text = output.read_text()
    ElementTree.fromstring(text)
    for label in ("a run", "training, smoothed", "held-out documents", "unigram baseline, 6.94"):
        assert f"<!-- {label} -->" in text
    assert [path.name for path in output.parent.iterdir()] == ["loss.svg"]


def test_a_picture_of_fine_tuning_speaks_of_its_own_loss(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    for step in range(1, 5):
        journal.append(step, {"train/loss": 1 / step, "dev/loss": 2 / step})
    journal.close()
    plot_losses(journal.path, tmp_path / "loss.svg", title="a run", curves=FINETUNING)
    text = (tmp_path / "loss.svg").read_text()
    assert "<!-- dev examples -->" in text and "<!-- loss -->" in text
    assert "masked" not in text and "<!-- 0.50 -->" in text


def test_a_picture_of_next_tokens_does_not_speak_of_masks(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    for step in range(1, 5):
        figures = {"train/next_token_loss": 4 / step, "heldout/next_token_loss": 8 / step}
        journal.append(step, figures)
    journal.close()
    output = tmp_path / "loss.svg"
    plot_losses(journal.path, output, title="a run", curves=NEXT_TOKENS, unigram_loss=6.0)
    text = output.read_text()
    assert "<!-- next-token loss (nats) -->" in text and "<!-- 2.00 -->" in text
    assert "masked" not in text


def test_a_run_without_losses_gives_a_picture(tmp_path):
    Journal(tmp_path / "journal.jsonl").close()
    plot_losses(tmp_path / "journal.jsonl", tmp_path / "loss.png", title="nothing yet")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_smoothing_keeps_a_line_a_line_and_takes_the_noise_out():
    assert np.allclose(smoothed(np.full(50, 3.0), 10), 3.0)
    line = np.arange(200.0)
    assert abs(smoothed(line, 5) - line)[60:-60].max() < 1e-3
    noise = np.random.default_rng(0).normal(size=2000)
    assert smoothed(noise, 50).std() < 0.2
    noise[[0, -1]] = 10
    assert abs(smoothed(noise, 50)[[0, -1]]).max() < 1  # the ends too, whatever stands there
