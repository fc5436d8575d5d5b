"""Where the words of a picture stand, roughly: what a test needs to see that none is cut off."""

import re
from xml.etree import ElementTree

from workflows.vector_charts import CHARACTER

ANCHORS = {"start": 0.0, "middle": 0.5, "end": 1.0}


def words_of(picture):
    """Each text with its left and right end and its baseline, in pixels."""
    root = ElementTree.fromstring(picture.inline())
    for each in root.iter("text"):
        x, y = float(each.get("x", "")), float(each.get("y", ""))
        said = "".join(each.itertext())
        width = len(said) * CHARACTER
        left = x - width * ANCHORS[each.get("text-anchor", "start")]
        yield said, left, left + width, y


def cut_off(picture):
    """The words that stand over an edge of the picture."""
    return [
        said
        for said, left, right, y in words_of(picture)
        if left < -3 or right > picture.width + 3 or not 8 <= y <= picture.height - 2
    ]


def marks(picture, kind):
    """The elements that have a class."""
    root = ElementTree.fromstring(picture.inline())
    return [each for each in root.iter() if kind in re.split(r"\s+", each.get("class", ""))]
