import subprocess
import sys
from collections import Counter

import pytest

from bert_core.text import documentation
from bert_core.text.documentation import (
    DocumentationError,
    documentation_files,
    documentation_modules,
    documentation_version,
    documented_nodes,
    parse_source,
    read_documentation,
)

MODULE = '''"""The module does
one thing.

- an item
- another

    >>> indented()
    1
"""
class Shape:
    """A shape."""
    def area(self):
        """Its area,
        in square metres."""
        def inner():
            "Deep inside."
async def fetch():
    """Fetches."""
raise RuntimeError("this module must never be imported")
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "some_package"
    (folder / "tests").mkdir(parents=True)
    (folder / "__init__.py").write_text(MODULE)
    (folder / "bare.py").write_text("x = 1\n")
    (folder / "broken.py").write_text("def (:\n")
    (folder / "tests" / "test_x.py").write_text('"""Not read."""')
    (tmp_path / "single.py").write_text('"""A single module."""')
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_docstrings_are_read_and_nothing_is_imported(package):
    dropped = Counter()
    documents = list(read_documentation("some_package", dropped))
    assert documents == [
        "The module does one thing.\n- an item\n- another\n>>> indented()\n1\nA shape.\n"
        "Its area, in square metres.\nDeep inside.\nFetches."
    ]
    assert dropped == {"modules_without_docstring": 1, "modules_that_do_not_parse": 1}
    assert "some_package" not in sys.modules


def test_modules_and_what_they_document_have_names(package):
    modules = documentation_modules("some_package")
    assert list(modules) == ["some_package", "some_package.bare", "some_package.broken"]
    assert list(modules.values()) == documentation_files("some_package")
    assert "http.client" in documentation_modules("stdlib")
    assert parse_source(b"def (:") is None
    names = [name for name, _, _ in documented_nodes(parse_source(MODULE.encode()))]
    assert names == ["", "Shape", "Shape.area", "Shape.area.inner", "fetch"]


def test_a_module_that_is_one_file(package):
    assert list(read_documentation("single", Counter())) == ["A single module."]
    assert list(read_documentation("some_package.bare", Counter())) == []


def test_the_standard_library_with_its_topics(monkeypatch):
    files = documentation_files("stdlib")
    assert len(files) > 500
    assert not any("site-packages" in str(path) for path in files)
    some = [path for path in files if path.parent.name in ("json", "logging", "pydoc_data")]
    monkeypatch.setattr(documentation, "documentation_files", lambda _: some)
    documents = list(read_documentation("stdlib", Counter()))
    assert len(documents) > 80 and sum(map(len, documents)) > 300_000
    assert any('The "if" statement is used for conditional execution' in d for d in documents)
    assert documentation_version("stdlib") == sys.version.split()[0]


def test_an_installed_package_in_a_bare_process():
    code = (
        "import sys; from collections import Counter;"
        "from bert_core.text.documentation import *;"
        "found = list(read_documentation('tokenizers', Counter()));"
        "assert len(found) > 3 and 'tokenizers' not in sys.modules;"
        "print(documentation_version('tokenizers'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    import tokenizers

    assert done.stdout.strip() == tokenizers.__version__


def test_packages_that_are_not_there():
    for name in ("no_such_package", "json.no_such_module", ""):
        with pytest.raises(DocumentationError, match="docs://"):
            documentation_files(name)
    with pytest.raises(DocumentationError, match="no Python source"):
        documentation_files("math")
