import json

import pytest

from benchmarks.encoder_run import picture as encoder_picture


def results():
    heldout = [
        {"tokens": tokens, "masked_token_loss": loss, "unigram_loss": 7.0}
        for tokens, loss in ((0, 9.1), (4e6, 6.5), (8e6, 5.25))
    ]
    curve = [{"tokens": n * 1e6, "masked_token_loss": 9 - n / 2} for n in range(1, 9)]
    return {
        "settings": {"recipe": {"size": "small"}},
        "surroundings": {"device": "NVIDIA H200"},
        "pretraining": {"seconds": 390.0, "curve": curve, "heldout": heldout},
    }


def test_what_is_drawn(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(encoder_picture, "save_picture", lambda figure, _: figures.append(figure))
    encoder_picture.draw(results(), tmp_path / "picture.svg")
    (axes,) = figures[0].axes
    training, heldout, unigram = axes.lines
    assert training.get_xydata()[0].tolist() == [1.0, 8.5]
    assert heldout.get_xydata().tolist() == [[0.0, 9.1], [4.0, 6.5], [8.0, 5.25]]
    assert set(unigram.get_ydata()) == {7.0}
    assert [text.get_text() for text in axes.texts] == ["5.25"]
    low, high = axes.get_ylim()
    assert low < 5.0 and 7.0 < high < 9.1
    assert axes.get_title(loc="left") == "6.5 minutes of pre-training, small, NVIDIA H200"


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_it_is_a_picture(tmp_path, ending):
    path = tmp_path / f"picture.{ending}"
    encoder_picture.draw(json.loads(json.dumps(results())), path)
    assert path.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")
