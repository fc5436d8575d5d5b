"""A document goes in, its sentences come out; docs/decisions.md says why by sentencex."""


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Splits every line of the text into sentences, stripped and never empty.

    `language` is a code such as `en`; sentencex falls back to a related language, or English.
    """
    from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue] - native module

    return [
        stripped
        for line in text.split("\n")
        for sentence in segment(language, line)
        if (stripped := sentence.strip())
    ]
