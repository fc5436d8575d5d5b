"""Personal data in texts, found by rule and replaced: mail, phone, IBAN and card numbers.

No pattern has a repetition within another: the time grows with the length of the text alone.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable

_EMAIL = re.compile(r"(?<![\w.%+-])[\w.%+-]{1,64}@[\w.-]{3,253}")
# The others begin with a set of characters, which the engine finds fast; what may not stand before
# it comes second.
_IBAN = re.compile(r"[A-Z](?<![A-Za-z0-9].)[A-Z][0-9]{2} ?[A-Z0-9][A-Z0-9 ]{9,45}")
_CARD = re.compile(r"[2-6](?<![\w.,+-].)[0-9 -]{11,30}")
_INTERNATIONAL = re.compile(
    r"[+0](?<![\w.+-].)(?:(?<=\+)|0(?<=00)(?<![0-9] 00))[1-9][0-9 ()./-]{6,24}"
)
_NORTH_AMERICAN = re.compile(
    r"[(1-9](?<![\w.+-].)"
    r"(?:(?<=1)[-. ](?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[-.])"
    r"|(?<=\()[2-9][0-9]{2}\) ?|(?<=[2-9])[0-9]{2}[-.])"
    r"[2-9][0-9]{2}[-. ][0-9]{4}(?![\w-])"
)
_NATIONAL = re.compile(
    r"[(0](?<![\w.+-].)(?<![0-9] .)(?:(?<=0)|(?<=\()0)[1-9][0-9]{0,4}\)?[ /-]{1,3}"
    r"[0-9][0-9 -]{4,12}"
)
_SEPARATORS = re.compile(r"[^0-9]{4}")
"""What ends a phone number: at most ` / ` stands between its digits."""

_IBAN_LENGTHS = {
    15: "NO",
    16: "BE",
    18: "DK FI FK FO GL NL SD",
    19: "MK SI",
    20: "AT BA EE KZ LT LU MN XK",
    21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA",
    23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST",
    26: "IS TR",
    27: "BI DJ FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
    29: "BR EG PS QA UA",
    30: "JO KW MU YE",
    31: "MT SC",
    32: "LC",
    33: "RU",
}
_IBAN_LENGTH = {
    country: length for length, countries in _IBAN_LENGTHS.items() for country in countries.split()
}
_CARD_PREFIXES = (  # first and last number that a card begins with, its numbers of digits
    (4, 4, (13, 16, 19)),
    (51, 55, (16,)),
    (2221, 2720, (16,)),
    (34, 34, (15,)),
    (37, 37, (15,)),
    (36, 36, range(14, 20)),
    (38, 38, range(14, 20)),
    (300, 305, range(14, 20)),
    (3528, 3589, range(16, 20)),
    (6011, 6011, range(16, 20)),
    (644, 659, range(16, 20)),
)


def scrub(text: str, kinds: Iterable[str], counts: Counter[str]) -> str:
    """Replaces personal data by [EMAIL], [IBAN], [CARD] or [PHONE], and counts it by kind."""
    for kind in kinds:
        if kind == "email" and "@" not in text:
            continue
        for pattern, length_of in _FINDERS[kind]:
            text = _replace(text, pattern, length_of, kind, counts)
    return text


def _replace(
    text: str,
    pattern: re.Pattern[str],
    length_of: Callable[[str], int],
    kind: str,
    counts: Counter[str],
) -> str:
    def replacement(match: re.Match[str]) -> str:
        length = length_of(match[0])
        if not length:
            return match[0]
        counts[f"scrubbed_{kind}"] += 1
        return f"[{kind.upper()}]{match[0][length:]}"

    return pattern.sub(replacement, text)


def _email_length(candidate: str) -> int:
    """How much of it is an address of mail, 0 where it is none; so are those below."""
    address = candidate.rstrip(".-_")
    local, _, domain = address.partition("@")
    labels = domain.split(".")
    top = labels[-1]
    is_domain = len(labels) > 1 and all(labels) and len(top) > 1 and top.isalpha()
    return len(address) if is_domain and local.strip(".%+-") else 0


def _iban_length(candidate: str) -> int:
    places = [place for place, character in enumerate(candidate) if character != " "]
    length = _IBAN_LENGTH.get(candidate[:2], 0)
    if not length or len(places) < length:
        return 0
    end = places[length - 1] + 1
    compact = candidate[:end].replace(" ", "")
    if candidate[end : end + 1].strip() or "  " in candidate[:end]:
        return 0
    number = "".join(str(int(character, 36)) for character in compact[4:] + compact[:4])
    return end if int(number) % 97 == 1 else 0


def _card_length(candidate: str) -> int:
    places = [place for place, character in enumerate(candidate) if character.isdigit()]
    for number in range(min(len(places), 19), 12, -1):
        end = places[number - 1] + 1
        digits = "".join(candidate[place] for place in places[:number])
        is_whole = not candidate[end : end + 1].isdigit()
        is_single = "  " not in candidate[:end] and "--" not in candidate[:end]
        if is_whole and is_single and _is_of_a_card(digits) and _passes_luhn(digits):
            return end
    return 0


def _is_of_a_card(digits: str) -> bool:
    return any(
        first <= int(digits[: len(str(first))]) <= last and len(digits) in lengths
        for first, last, lengths in _CARD_PREFIXES
    )


def _passes_luhn(digits: str) -> bool:
    values = [int(digit) for digit in reversed(digits)]
    doubled = (sum(divmod(2 * value, 10)) for value in values[1::2])
    return (sum(values[::2]) + sum(doubled)) % 10 == 0


def _phone_length(candidate: str, least: int, most: int) -> int:
    gap = _SEPARATORS.search(candidate)
    number = (candidate[: gap.start()] if gap else candidate).rstrip(" ()./-")
    digits = sum(map(str.isdigit, number))
    return len(number) if least <= digits <= most else 0


def _international_length(candidate: str) -> int:
    is_marked = candidate[0] == "+" or not candidate.rstrip(" ()./-").isdigit()
    return _phone_length(candidate, 8, 17) if is_marked else 0


_FINDERS: dict[str, tuple[tuple[re.Pattern[str], Callable[[str], int]], ...]] = {
    "email": ((_EMAIL, _email_length),),
    "iban": ((_IBAN, _iban_length),),
    "card": ((_CARD, _card_length),),
    "phone": (
        (_INTERNATIONAL, _international_length),
        (_NORTH_AMERICAN, len),
        (_NATIONAL, lambda candidate: _phone_length(candidate, 9, 12)),
    ),
}
PERSONAL_DATA = tuple(_FINDERS)
"""The kinds in the order in which they are looked for."""
