import re
from xml.etree import ElementTree

import pytest
from made_up_ablations import OUTCOMES, half_way, objective

from workflows.ablations.findings import ablation_findings
from workflows.ablations.pictures import curve_pictures, score_picture

SVG = "{http://www.w3.org/2000/svg}"


def drawn(picture):
    """The elements of a picture as a file, each with its class."""
    return [
        (each.tag.removeprefix(SVG), each) for each in ElementTree.fromstring(picture.file()).iter()
    ]


@pytest.mark.parametrize("name", OUTCOMES)
def test_everything_lies_within_the_picture(name):
    findings = ablation_findings(OUTCOMES[name]())
    pictures = [score_picture(findings, each) for each in findings.tasks if each.scores]
    for picture in [*pictures, *curve_pictures(findings)]:
        for tag, element in drawn(picture):
            for attribute, most in (("cx", picture.width), ("x", picture.width),
                                    ("cy", picture.height), ("y", picture.height)):  # fmt: skip
                if attribute in element.attrib and tag in ("circle", "text"):
                    assert 0 <= float(element.attrib[attribute]) <= most


def test_there_is_a_dot_for_each_seed_and_a_mean_for_each_variant():
    findings = ablation_findings(objective())
    task = findings.tasks[2]
    elements = drawn(score_picture(findings, task))
    dots = [each.attrib["class"] for tag, each in elements if tag == "circle"]
    assert dots == ["dot best"] * 3 + ["dot s3"] * 6
    means = [float(e.attrib["x1"]) for t, e in elements if e.attrib.get("class") == "mean"]
    chances = [float(e.attrib["x1"]) for t, e in elements if e.attrib.get("class") == "chance"]
    assert len(means) == 3 and chances == [means[0]] * 3
    assert means[2] < means[1], "left to right is further to the left"
    bands = [e for t, e in elements if e.attrib.get("class") == "bar"]
    assert len(bands) == 3
    single = score_picture(
        ablation_findings(objective(seeds=1)), ablation_findings(objective(seeds=1)).tasks[0]
    )
    assert not [e for _, e in drawn(single) if e.attrib.get("class") == "bar"]


def test_masked_and_next_tokens_are_drawn_apart():
    masked, next_tokens = curve_pictures(ablation_findings(objective()))
    assert "Masked-token loss" in masked.label and "Next-token loss" in next_tokens.label
    assert masked.body.count('class="dot') == 2 and next_tokens.body.count('class="dot') == 1
    assert "line best" in masked.body and "line best" not in next_tokens.body
    (only,) = curve_pictures(ablation_findings(half_way()))
    assert "left to right" not in only.body


def test_a_falling_loss_falls():
    (masked, _) = curve_pictures(ablation_findings(objective()))
    path = re.search(r'<path class="seen" d="M([^"]+)"', masked.body)
    heights = [float(each.split()[1]) for each in path[1].split("L")]
    assert heights == sorted(heights), "downwards on the screen"
