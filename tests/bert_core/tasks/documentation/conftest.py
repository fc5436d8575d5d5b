"""A package on the path, of which the tests write the modules."""

import pytest

from bert_core.tasks.documentation import answers, library, parameters

CACHED = (
    answers._questions_by_split,
    library._passages_by_split,
    parameters._passages_by_split,
)


@pytest.fixture
def write_package(tmp_path, monkeypatch):
    """Makes packages of modules' sources; examples that were read before are forgotten."""

    def write(name, modules):
        for module, source in modules.items():
            path = tmp_path / name / f"{module}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)

    monkeypatch.syspath_prepend(tmp_path)
    for function in CACHED:
        function.cache_clear()
    return write
