import re

import pytest

from bert_core.tasks.catalog import TASKS

FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = ["exercises/01_mlm_training.md", "new_task.md"]


@pytest.fixture
def tasks_stay():
    """Takes out of TASKS what a page has put in."""
    before = dict(TASKS)
    yield
    TASKS.clear()
    TASKS.update(before)


@pytest.mark.parametrize("name", PAGES)
def test_every_snippet_of_the_page_runs(repository, name, capsys, tasks_stay):
    page = repository / "docs" / name
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "exercise"}
    snippets = list(FENCE.finditer(text))
    assert len(snippets) > 3
    for snippet in snippets:
        line = text[: snippet.start(1)].count("\n")
        code = compile("\n" * line + snippet.group(1), str(page), "exec")
        exec(code, namespace)
    print(capsys.readouterr().out)


def test_every_exercise_is_tested(repository):
    pages = {f"exercises/{page.name}" for page in (repository / "docs" / "exercises").glob("*.md")}
    assert pages == {page for page in PAGES if page.startswith("exercises/")}
