import re

import pytest

FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["01_mlm_training.md"])
def test_every_snippet_of_the_exercise_runs(repository, name, capsys):
    page = repository / "docs" / "exercises" / name
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
    pages = {page.name for page in (repository / "docs" / "exercises").glob("*.md")}
    assert pages == {"01_mlm_training.md"}
