from matplotlib.image import imread

from workflows.pictures import DOTS_PER_INCH, new_figure, save_picture, set_title, tidy


def save(path, title="t"):
    figure = new_figure(3, 2)
    axes = figure.add_subplot()
    axes.plot([1, 2], [2, 1])
    set_title(axes, title)
    tidy(axes)
    save_picture(figure, path)
    return path


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
