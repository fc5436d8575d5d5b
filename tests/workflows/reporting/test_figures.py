import re
from xml.etree import ElementTree

import pytest
from hostile_labels import HOSTILE_LABELS
from matplotlib.image import imread

from workflows.reporting.figures import (
    DOTS_PER_INCH,
    MARK,
    SHADES,
    THEME,
    Chart,
    ParallelAxis,
    ParallelLine,
    new_figure,
    parallel_coordinates,
    save_picture,
    set_title,
    shade,
    shortened,
    tidy,
    value_text,
)


def save(path, title="t"):
    figure = new_figure(3, 2)
    axes = figure.add_subplot()
    axes.plot([1, 2], [2, 1])
    set_title(axes, title)
    tidy(axes)
    save_picture(figure, path)
    return path


def drawn(name="scores", label="a mark", alt="Scores"):
    chart = Chart("Scores <b> $x$")
    chart.line([1, 2], [3, 4], color=SHADES[1], label=label, key="7")
    chart.dots([1], [3], color=MARK, label=label, key="7")
    chart.axes.set_ylabel("score")
    return chart.finish(name, caption="Scores.", alt=alt)


def test_the_same_picture_has_the_same_bytes_and_stands_alone(tmp_path):
    for ending in ("png", "svg"):
        once = save(tmp_path / ending / f"a.{ending}")
        if ending == "png":  # the names of an SVG's parts are drawn by lot
            assert once.read_bytes() == save(tmp_path / f"b.{ending}").read_bytes()
        assert [each.name for each in once.parent.iterdir()] == [once.name]
    assert "<dc:date>" not in (tmp_path / "svg" / "a.svg").read_text()


def test_a_title_that_is_too_long_makes_the_picture_wider(tmp_path):
    short, long = (imread(save(tmp_path / "a.png", title)) for title in ("t", "a title " * 40))
    assert short.shape[1] < 3.3 * DOTS_PER_INCH < 5 * DOTS_PER_INCH < long.shape[1]
    assert long.shape[1] < 8 * DOTS_PER_INCH, "it has several lines"


def test_a_figure_is_the_same_again_and_its_ids_are_its_own():
    assert drawn().svg == drawn().svg
    ids = [set(re.findall(r' id="([^"]+)"', drawn(name).svg)) for name in ("scores", "curves")]
    assert ids[0] and not ids[0] & ids[1]
    used = set(re.findall(r'href="#([^"]+)"', drawn().svg))
    assert used and used <= ids[0], "what a figure refers to is in it"


def test_every_color_of_a_figure_follows_the_theme():
    svg = drawn().svg
    bare = re.sub(r"var\(--\w+, #[0-9a-f]{6}\)", "", svg)
    assert not re.search(r"(?:fill|stroke): #", bare)
    assert "var(--ink, " in svg and "var(--mark, " in svg
    for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        assert "var(--" in text.get("style", ""), "black text cannot be read in dark mode"


@pytest.mark.slow
def test_marks_have_keys_and_tooltips_and_a_file_its_own_colors():
    for label in HOSTILE_LABELS[::4]:
        figure = drawn(label=label, alt=label)
        root = ElementTree.fromstring(figure.file())
        marks = [each for each in root.iter() if each.get("data-key") == "7"]
        assert len(marks) == 2 and all(mark[0].tag.endswith("title") for mark in marks)
        assert "prefers-color-scheme: dark" in figure.file()
    assert f"--ink: {THEME['ink'][1]}" in figure.file()


def test_bars_and_parallel_coordinates_are_drawn_whole():
    chart = Chart("Importance")
    chart.bars(["a <name>", "b"], [0.2, 0.8], ["20%", "80%"])
    assert ElementTree.fromstring(chart.finish("bars", caption="c", alt="a").file()) is not None
    axes = [ParallelAxis("size", [(0, "1"), (1, "2")]), ParallelAxis("score", [(0, "0")])]
    lines = [ParallelLine([0, 1], SHADES[0], "1", "first"), ParallelLine([1, 0], MARK, "2", "last")]
    svg = parallel_coordinates(axes, lines, "parallel", caption="c").svg
    assert svg.index("first") < svg.index("last")
    assert all(f">{text}</text>" in svg for text in ("size", "score", "1", "2", "0"))


def test_values_and_names_are_short():
    values = {5e-5: "5e-5", 0.1: "0.1", 4096: "4096", 1234.5: "1234", True: "true", None: "null"}
    assert {value: value_text(value) for value in values} == values
    assert value_text("text") == "text" and value_text(0.0) == "0"
    assert shortened("a" * 10 + "b" * 10, 9) == "aaaa…bbbb" and shortened("short") == "short"
    assert shade(0, 1, 2) == SHADES[0] and shade(3, 1, 2) == shade(1, 1, 1) == SHADES[-1]
