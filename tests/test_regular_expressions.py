"""No compiled pattern of the product takes more than linear time, whatever text it sees."""

import pkgutil
import re
import time
from importlib import import_module
from itertools import product
from pathlib import Path

import pytest

import bert_core
import serving

UNITS = [
    *"aA1.-=_ \n\"'`«([{<|/\\:,*#@é東\u0301\u200b\u00a0",
    *("a ", "a.", "a-", "a:", "a,", "1.", "= ", "a\n", " \n", "a'", "<a ", "[[", "[ [", "{{", "a|"),
    *("(a)", "n't ", "a_", "A b", "is ", "*a", "`a", ":a:`", "a(", "a\n---\n", "    a: b\n"),
    *(":param a", "x (a, ", "http://", "a@"),
]
AROUND = [("", ""), ("[= a", "!\n")]
SHORT, LONG = 400, 4000
MOST_SECONDS = 0.01  # of processor time; a linear pattern takes less than a thousandth


def compiled_patterns():
    """Each pattern of a module, and the methods by which the module uses it."""
    found = {}
    for package in (bert_core, serving):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".xla" in module.name or module.name.endswith("__main__"):
                continue  # these need a TPU, or begin to serve
            loaded = import_module(module.name)
            source = Path(loaded.__file__).read_text(encoding="utf-8")
            for name, value in vars(loaded).items():
                parts = [value] if isinstance(value, re.Pattern) else []
                if isinstance(value, dict | list | tuple):
                    parts = [each for each in value if isinstance(each, re.Pattern)]
                used = set(re.findall(rf"\b{name}\.(\w+)", source)) & {"match", "fullmatch"}
                if not used or re.search(rf"\b{name}\.(search|sub|split|find)", source):
                    used.add("sub")
                for each in parts:
                    found.setdefault(f"{module.name}.{name}", (each, used))
    return found


PATTERNS = compiled_patterns()


def seconds(pattern, used, text):
    text = text.encode() if isinstance(pattern.pattern, bytes) else text
    began = time.thread_time()
    for method in used:
        if method == "sub":
            pattern.sub(text[:0], text)
        else:
            getattr(pattern, method)(text)
    return time.thread_time() - began


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_linear(name):
    pattern, used = PATTERNS[name]
    for unit, (before, after), size in product(UNITS, AROUND, (SHORT, LONG)):
        text = before + (unit * size)[:size] + after
        if seconds(pattern, used, text) > MOST_SECONDS:  # once more, in case of a bad moment
            assert seconds(pattern, used, text) < MOST_SECONDS, (before, unit, after, size)


@pytest.mark.parametrize(
    ("pattern", "method", "text"),
    [
        (r"(=+)\s?.*\s?\1$", "match", "=" * 1500 + " "),
        (r"[^\W\d_]\.$|.*\w.*\..*\w\.$", "match", "a" * SHORT + "." * SHORT + ")"),
        (r"\w+@", "sub", "a" * 2 * LONG),
        (r"[\w.]+@", "sub", "a." * LONG),
        (r"(?:a|a)*b", "match", "a" * 22),
    ],
)
def test_a_pattern_that_is_not_linear_is_found(pattern, method, text):
    assert seconds(re.compile(pattern), {method}, text) > MOST_SECONDS
