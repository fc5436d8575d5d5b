"""Programs are compiled once, and into how many parts rows can be divided."""

import pytest
import xla_room

from bert_core.training.xla.program import lacks_memory, more_parts


@pytest.mark.parametrize(
    ("rows", "parts", "more"),
    [(128, 1, 2), (128, 2, 4), (6, 2, 3), (6, 3, 6), (7, 1, 7), (7, 7, None), (1, 1, None)],
)
def test_rows_are_divided_into_more_equal_parts(rows, parts, more):
    assert more_parts(rows, parts) == more


def test_what_lacks_memory():
    assert lacks_memory(RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm"))
    assert not lacks_memory(RuntimeError("INTERNAL: halted"))


def test_a_program_is_compiled_once_for_its_shapes(in_xla):
    assert in_xla(xla_room.compiled_for_shapes) == [1, 1, 2, 2]


def test_another_error_of_the_compiler_is_not_a_lack_of_room(in_xla):
    assert in_xla(xla_room.failed_compilation) == ("INTERNAL: a crash", [1])
