"""Personal data that is found by rule and replaced."""

import time
from collections import Counter

import pytest

from bert_core.text.personal_data import PERSONAL_DATA, scrub


def scrubbed(text):
    counts = Counter()
    return scrub(text, PERSONAL_DATA, counts), dict(counts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to ann.b+c@mail.example.org.", "Write to [EMAIL]."),
        ("<ann@example.org>, (bob@example.co.uk)", "<[EMAIL]>, ([EMAIL])"),
        ("jürgen@exämple.de!", "[EMAIL]!"),
        ("IBAN DE89 3704 0044 0532 0130 00 BIC X", "IBAN [IBAN] BIC X"),
        ("GB29NWBK60161331926819, thanks", "[IBAN], thanks"),
        ("card 4111 1111 1111 1111 (Visa)", "card [CARD] (Visa)"),
        ("5555-5555-5555-4444.", "[CARD]."),
        ("378282246310005", "[CARD]"),
        ("Call +49 (0)30 1234567 now", "Call [PHONE] now"),
        ("Tel. (212) 555-0123.", "Tel. [PHONE]."),
        ("212-555-0123, +1 212 555 0123", "[PHONE], [PHONE]"),
        ("030 / 1234567 or 01 23 45 67 89", "[PHONE] or [PHONE]"),
        ("0044 20 7946 0958", "[PHONE]"),
        ("1-212-555-0123 or 1 (212) 555-0123", "[PHONE] or [PHONE]"),
        ("(030) 1234567", "[PHONE]"),
    ],
)
def test_what_is_replaced(text, expected):
    found, counts = scrubbed(text)
    assert found == expected
    assert sum(counts.values()) == expected.count("[")


@pytest.mark.parametrize(
    "text",
    [
        "a@b, @name, user@host, me@example..com, x@example.c0m1",
        "DE89 3704 0044 0532 0130 01 and XX89 3704 0044 0532 0130 00",  # checksum, country
        "4111 1111 1111 1112",  # checksum
        "1234567812345670",  # of no issuer
        "In 1990-1995, on 2004-05-12 and 01-02-2003, at 10:30",
        "ISBN 0-13-110362-8, 978-3-16-148410-0",
        "3.14159265358979 and 0.0123456789 and 1,000,000,000",
        "pages 0123-0456; 192.168.100.200; 007",
        "012345678901",
        "x212-555-0123, 1212-555-0123, 5212-555-01234, A5555-5555-5555-4444",
    ],
)
def test_what_is_left_alone(text):
    assert scrubbed(text) == (text, {})


def test_only_the_kinds_asked_for():
    counts = Counter()
    text = "ann@example.org, (212) 555-0123"
    assert scrub(text, ["phone"], counts) == "ann@example.org, [PHONE]"
    assert counts == {"scrubbed_phone": 1} and scrub(text, (), counts) == text


@pytest.mark.parametrize(
    "unit", ["a", "1", "1 ", "a.", "@", "a@", "DE12 ", "A", "+1 ", "0 ", "(0", "-"]
)
def test_time_grows_with_the_length_alone(unit):
    start = time.process_time()
    scrubbed(unit * (1_000_000 // len(unit)))
    assert time.process_time() - start < 10
