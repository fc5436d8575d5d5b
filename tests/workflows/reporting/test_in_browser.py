"""A report in a real browser: accessible, within the screen, sorted and highlighted on demand."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from browsing import open_browser

from workflows.reporting.figures import (
    MARK,
    SHADES,
    Chart,
    ParallelAxis,
    ParallelLine,
    parallel_coordinates,
)
from workflows.reporting.render import (
    Cell,
    Code,
    Facts,
    Figures,
    Page,
    Row,
    Section,
    Table,
    write_report,
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    chart = Chart("Scores by size")
    axes = [ParallelAxis(f"axis {index}", [(0, "low"), (1, "high")]) for index in range(5)]
    lines = [
        ParallelLine([0, 1, 0, 1, 0.5], SHADES[1], "1", "first"),
        ParallelLine([1, 0, 1, 0, 1], MARK, "2", "second"),
    ]
    for key, scores in (("1", [3, 2]), ("2", [1, 2])):
        chart.dots([1, 2], scores, color=SHADES[3], label=f"setting {key}", key=key)
    rows = [
        Row([Cell(str(rank), rank), Cell(text, order), "words " * 20], key=str(rank))
        for rank, text, order in ((1, "9.5", 9.5), (2, "10.5", 10.5), (3, "–", None))
    ]
    figures = [
        parallel_coordinates(axes, lines, "parallel", caption="A line for each setting."),
        chart.finish("scores", caption="A dot for each trial.", alt="Scores by size"),
    ]
    parts = [
        Table("All settings", ["rank", "score", "what"], rows, ["A note."]),
        Figures(figures),
        Facts([("cost", "2 hours")]),
        Code("python workflows/finetune.py " + "--option value " * 20),
        Code("seed: 1", summary="best.yaml"),
    ]
    folder = tmp_path_factory.mktemp("report")
    write_report(Page("Sweep", "One is best", [("task", "mrpc")], [Section("All", parts)]), folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible_and_only_boxes_scroll(browser, report, width, scheme):
    size = {"width": width, "height": 800}
    with browser.new_context(viewport=size, color_scheme=scheme) as context:
        page, requests = context.new_page(), []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(report.as_uri())
        violations = Axe().run(page).response["violations"]
        assert not violations, [
            (violation["id"], violation["nodes"][0]["html"]) for violation in violations
        ]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert requests == [report.as_uri()]


def test_columns_sort_by_number_and_the_same_key_lights_up_everywhere(browser, report):
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(report.as_uri())
        head = page.get_by_role("button", name="score", exact=True)
        head.click()
        assert page.locator("tbody th").all_inner_texts() == ["3", "1", "2"]
        head.click()
        assert page.locator("tbody th").all_inner_texts() == ["2", "1", "3"]
        page.locator("tbody tr").first.hover()
        assert page.locator(".on").count() == 3, "the row, its line and its dots"
