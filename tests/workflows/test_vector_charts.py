from xml.etree import ElementTree

import pytest

from workflows.vector_charts import (
    NUM_SHADES,
    STYLE,
    Numbers,
    Picture,
    Places,
    dot,
    path_line,
    shade,
    shortened,
    side_by_side,
    text,
    value_text,
)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5e-5, "5e-5"), (2.3714e-5, "2.37e-5"), (0.000112, "1.12e-4"), (0.1, "0.1"), (0.0, "0"),
        (4096, "4096"), (1234.4, "1234"), (2.5e7, "2.5e7"), (-3e-4, "-3e-4"), (3.0, "3"),
        (True, "true"), (None, "null"), ("last", "last"),
    ],
)  # fmt: skip
def test_values_are_written_as_people_do(value, said):
    assert value_text(value) == said


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (86.1, 90.3, ["87", "88", "89", "90"]),
        (88.42, 88.44, ["88.420", "88.425", "88.430", "88.435", "88.440"]),
        (100.0, 5e6, ["1e6", "2e6", "3e6", "4e6", "5e6"]),
        (3.0, 3.0, ["3"]),
    ],
)
def test_ticks_are_round_numbers_within(low, high, texts):
    scale = Numbers(low, high, 100, 0)
    ticks = scale.ticks()
    assert [said for _, said in ticks] == texts
    assert all(-1e-6 <= place <= 100 + 1e-6 for place, _ in ticks)


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (1e-6, 1e-3, ["1e-6", "1e-5", "1e-4", "0.001"]),
        (8e-6, 2e-4, ["1e-5", "3e-5", "1e-4"]),
        (1.1e-5, 1.9e-5, ["1.1e-5", "1.9e-5"]),
    ],
)
def test_logarithms_have_ticks_of_their_own(low, high, texts):
    scale = Numbers(low, high, 0, 100, is_log=True)
    assert [said for _, said in scale.ticks()] == texts
    assert scale.at((low * high) ** 0.5) == pytest.approx(50)


def test_what_lies_outside_is_drawn_at_the_end():
    scale = Numbers(10, 20, 0, 100)
    assert [scale.at(value) for value in (-5, 15, 99)] == [0, 50, 100]


def test_values_stand_side_by_side():
    scale = Places((1, True, None, "a"), 100, 0)
    assert [scale.at(value) for value in (1, True, None, "a")] == [87.5, 62.5, 37.5, 12.5]
    assert scale.spacing == 25
    assert [said for _, said in scale.ticks()] == ["1", "true", "null", "a"]


def test_better_is_another_shade():
    assert shade(0, 0, 1) == shade(-9, 0, 1) == "s0"
    assert shade(1, 0, 1) == shade(9, 0, 1) == shade(3, 3, 3) == f"s{NUM_SHADES - 1}"
    assert len({shade(each / 99, 0, 1) for each in range(100)}) == NUM_SHADES
    assert all(f".s{each} " in STYLE for each in range(NUM_SHADES))


def test_long_names_keep_both_ends():
    assert shortened("last", 50) == "last"
    cut = shortened("weighted_sum_last_four", 72)
    assert len(cut) == 10 and cut.startswith("weig") and cut.endswith("_four")


def test_a_picture_is_xml_whatever_it_says():
    name = '</text><script>&"'
    body = text(1, 2, name, anchor="end", kind="title", degrees=-40)
    body += dot(3, 4, "s1", name) + path_line("M0 0L1 1", "best", name, more=' data-point="1"')
    picture = Picture(30, 20, body, name)
    both = side_by_side([picture, picture, picture], columns=2, label=name)
    assert (both.width, both.height) == (60, 40)
    for each in (picture.inline("if-wide"), picture.file(), both.file()):
        root = ElementTree.fromstring(each)
        texts = "".join(root.itertext())
        assert name in texts and "script" not in {part.tag.split("}")[-1] for part in root.iter()}
        assert root.get("role") == "img"
    assert ElementTree.fromstring(picture.inline("x")).get("aria-label") == name


def test_a_file_has_its_own_colours_for_light_and_dark():
    written = Picture(1, 1, "", "nothing").file()
    assert "prefers-color-scheme: dark" in written and "http" not in written.replace(
        "http://www.w3.org/2000/svg", ""
    )
