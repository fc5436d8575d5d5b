from collections import Counter

import pytest

from bert_core.tasks.documentation.library import LibraryOfPassage, _name_pattern
from bert_core.tasks.tables import TaskDataError


def modules(package, count, verb):
    """Modules whose docstrings name their package; a sentence in each says the same."""
    return {
        f"module_{number}": f'"""{package} {verb} value {number} of all the values there are.\n'
        f"\nThis very sentence is the same in all of the many modules.\n"
        f'\n>>> {package}.run()\n"""'
        for number in range(count)
    }


@pytest.fixture
def two_libraries(write_package):
    write_package("upper", modules("upper", 120, "raises"))
    write_package("lowers", modules("Lowers", 120, "sinks"))
    return "docs://upper,lowers"


def test_passages_are_labelled_by_their_package_whose_name_is_masked(two_libraries):
    task = LibraryOfPassage(max_examples=200)
    train, dev = task.examples(two_libraries, "train"), task.examples(two_libraries, "dev")
    for each in [*train, *dev]:
        assert "upper" not in each.first.lower() and "lowers" not in each.first.lower()
        assert ">>>" not in each.first
    masked = [each for each in train if "same in all" not in each.first]
    verbs = {"raises": "upper", "sinks": "lowers"}
    assert all(verbs[each.first.split()[1]] == each.answer for each in masked)
    assert len(masked) >= len(train) - 1
    counts = Counter(each.answer for each in train)
    assert min(counts.values()) > 60
    labelled = task.with_labels(train)
    assert labelled.labels == ("lowers", "upper")
    assert labelled.label_names(dev) == {"lowers", "upper"}


def test_no_text_and_no_module_is_in_two_splits(two_libraries):
    task = LibraryOfPassage(max_examples=200)
    seen = {}
    for split in ("train", "dev", "test"):
        for each in task.examples(two_libraries, split):
            assert seen.setdefault(each.first.lower(), split) == split
            assert seen.setdefault(each.columns["module"], split) == split


def test_one_library_alone_is_refused(two_libraries):
    with pytest.raises(TaskDataError, match="fewer than two libraries.*docs://upper"):
        LibraryOfPassage(max_examples=200).examples("docs://upper", "train")


def test_few_examples_are_those_of_few_libraries(two_libraries, write_package):
    write_package("small", modules("small", 119, "turns"))
    libraries = {}
    for max_examples in (120, 400):
        task = LibraryOfPassage(max_examples=max_examples)
        train = task.examples(f"{two_libraries},small", "train")
        libraries[max_examples] = {each.answer for each in train}
    assert libraries == {120: {"upper", "lowers"}, 400: {"upper", "lowers", "small"}}


def test_the_parts_of_the_standard_library_are_told_apart():
    examples = LibraryOfPassage(max_examples=200).examples("docs://email,asyncio", "train")
    assert {each.answer for each in examples} == {"email", "asyncio"}


@pytest.mark.parametrize(
    ("library", "text", "masked"),
    [
        ("torch", "PyTorch and torch.nn of TorchScript", "* and *.nn of *Script"),
        ("email", "Emails, an email; mailbox, emailing", "*, an *; mailbox, emailing"),
        ("http", "HTTPResponse of https", "*Response of *"),
        ("ray", "Ray, an array and ray_x", "*, an array and *_x"),
        ("sklearn", "scikit-learn (sklearn)", "* (*)"),
    ],
)
def test_what_counts_as_the_name_of_a_library(library, text, masked):
    assert _name_pattern(library).sub("*", text) == masked
