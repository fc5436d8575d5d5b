"""READMEs, guides and docs/tpu.md are true: commands, options, paths, links and the snippet."""

import functools
import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml
from pydantic import ValidationError

from bert_core.config import SIZES
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.tasks.catalog import TASKS
from bert_core.tokenizer_training import train_wordpiece
from workflows import finetune, pretrain, tune
from workflows.ablations import settings as ablations
from workflows.clusters.settings import ClusterSettings, tpu_slice
from workflows.mine_negatives import MineSettings
from workflows.portable.settings import ExportSettings
from workflows.prepare import PrepareSettings
from workflows.settings import LAYERS, parse_command_line

REPOSITORY = Path(__file__).parents[2]
GUIDES = sorted(
    str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs" / "guides").glob("*.md")
)
PAGES = {
    name: (REPOSITORY / name).read_text(encoding="utf-8")
    for name in ("README.md", "infra/README.md", "docs/benchmarks.md", *GUIDES)
}
README = PAGES["README.md"]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
OPTION = re.compile(r"(?<![\w-])--[\w.-]*\w")
PLACEHOLDERS = {"--section.field"}
PARSERS = {
    "workflows/ablate.py": ablations.parse,
    "workflows/export.py": lambda words: parse_command_line(ExportSettings, words),
    "workflows/finetune.py": finetune.parse,
    "workflows/mine_negatives.py": lambda words: parse_command_line(MineSettings, words),
    "workflows/prepare.py": lambda words: parse_command_line(PrepareSettings, words),
    "workflows/pretrain.py": pretrain.parse,
    "workflows/tune.py": tune.parse,
}
FILE = re.compile(r"(?<![\w./:-])\w[\w./-]*(?:\.(?:py|md|yaml|json|txt|png)\b|/(?![\w*/]))")
IN_A_RUN_FOLDER = {"model/"}
WRITTEN = re.compile(r"--json \S+")
"""The file that a command shown is to write: it may not be there yet."""
FENCES = [match.groups() for match in FENCE.finditer(README)]
SPANS = [span for page in PAGES.values() for span in INLINE.findall(FENCE.sub("", page))]


def shell_lines(text):
    """Lines that call a program, without comments; one that ends in a backslash goes on."""
    for line in text.replace("\\\n", " ").splitlines():
        command = line.partition("#")[0].strip()
        if re.match(r"(make|python|ray) |infra/[\w/]+\.sh\b", command):
            yield command


COMMANDS = [
    command
    for text in (
        *(text for page in PAGES.values() for kind, text in FENCE.findall(page) if kind == ""),
        *SPANS,
    )
    for command in shell_lines(text)
]


def calls_of(command):
    """The programs of a command, each with the words after it: `ray job submit` has another."""
    first, _, rest = command.partition(" -- ")
    words = re.sub(r"[\[\]|…]", " ", first).split()
    length = {"python": 3 if words[1:2] == ["-m"] else 2, "ray": 3 if words[1:2] == ["job"] else 2}
    length = length.get(words[0], 1)
    yield " ".join(words[:length]), words[length:]
    if rest:
        yield from calls_of(rest)


CALLS = [call for command in COMMANDS for call in calls_of(command)]
PROGRAMS = sorted({program for program, _ in CALLS if program != "make"})


VARIANTS = {
    "python workflows/evaluate.py": ("--suite table7", "--suite pictures"),
    "python workflows/finetune.py": (
        "--task ner --approach features",
        "--task embedding",
        "--task rerank",
    ),
    "python workflows/registry.py": ("lineage",),
}
"""What a program is asked beside for its help, where that decides which options it has."""


@functools.cache
def helps():
    """What each program and variant prints to `--help`: `{command: (exit code, text)}`."""
    asked = [*PROGRAMS, *(f"{name} {other}" for name in VARIANTS for other in VARIANTS[name])]
    commands = [f"{command} --help" for command in asked if not command.startswith("infra/")]
    script = Path(__file__).with_name("helps.py")
    done = subprocess.run(
        [sys.executable, script, *commands], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@functools.cache
def help_of(program, variant=""):
    """What the program's own parser prints."""
    command = " ".join(filter(None, [program, variant, "--help"]))
    if program.startswith("infra/"):
        done = subprocess.run(command.split(), cwd=REPOSITORY, capture_output=True, text=True)
        code, text = done.returncode, done.stdout or done.stderr
    else:
        code, text = helps()[command]
    # 2 is for the one program that takes no option at all and answers all with its usage.
    assert code in (0, 2) and "usage: " in text.lower(), text
    return text


def declared_options(program):
    """The options that its help lists, each at the start of a line; not those of its prose."""
    told = help_of(program)
    for variant in VARIANTS.get(program, ()):
        told += help_of(program, variant)
    lines = re.findall(r"^ +((?:-\w, |--[\w.-]+, )*--[\w.-]+)", told, re.MULTILINE)
    return {option for line in lines for option in OPTION.findall(line)}


def test_the_commands_are_found():
    programs = {"python workflows/prepare.py", "python workflows/pretrain.py", "ray job submit"}
    assert programs < set(PROGRAMS)
    assert {("make", ("demo",)), ("make", ("test",)), ("make", ("bench",))} <= {
        (program, tuple(words)) for program, words in CALLS
    }
    assert len(COMMANDS) >= 8


def test_every_target_is_in_the_makefile():
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    asked = {words[0] for program, words in CALLS if program == "make"}
    assert asked <= targets


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_is_there_and_takes_the_options_shown(program):
    name = program.split()[-1]
    if program.startswith("python -m"):
        assert find_spec(name) is not None
    elif program.startswith("python"):
        assert (REPOSITORY / name).is_file()
    words = [word for called, words in CALLS if called == program for word in words]
    shown = {option for word in words for option in OPTION.findall(word)} - PLACEHOLDERS
    assert shown <= declared_options(program)
    verbs = {word for word in words[:1] if re.fullmatch("[a-z]+", word)}
    assert all(re.search(rf"\b{verb}\b", help_of(program)) for verb in verbs)


COMPLETE = [
    (program.removeprefix("python "), words)
    for command in COMMANDS
    if not re.search(r"[\[\]|…]", command)
    for program, words in [list(calls_of(command))[-1]]
    if program.removeprefix("python ") in PARSERS and words
]
"""Commands that can be given as they stand, once there is such a text, model or bucket."""


@pytest.mark.parametrize(
    ("program", "words"), COMPLETE, ids=lambda each: each if isinstance(each, str) else ""
)
def test_a_complete_command_is_read_by_its_program(program, words):
    PARSERS[program](shlex.split(" ".join(words)))


def test_the_complete_commands_are_found():
    assert {program for program, _ in COMPLETE} == set(PARSERS)


def test_options_named_in_prose_belong_to_a_program():
    named = {span.split()[0] for span in SPANS if span.startswith("--")} - PLACEHOLDERS
    assert named
    known = set().union(*(declared_options(program) for program in PROGRAMS))
    known |= {f"--options.{name}" for task in TASKS.values() for name in type(task).model_fields}
    assert named <= known


def names_in_table(title):
    """The names in the first column of the table whose first column has this title."""
    text = "\n".join(PAGES[name] for name in GUIDES)
    rows = re.search(rf"^\| {title} \|.*\n\|---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    return {name for row in rows[1].splitlines() for name in INLINE.findall(row.split("|")[1])}


def test_presets_and_tasks_are_those_of_the_tables():
    presets = {path.stem for path in (REPOSITORY / "workflows" / "presets").glob("*.yaml")}
    assert names_in_table("preset") == presets
    assert names_in_table("task") == set(TASKS)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    links = [link for link in LINK.findall(PAGES[page]) if "://" not in link]
    folder = (REPOSITORY / page).parent
    assert not [link for link in links if not (folder / link.partition("#")[0]).exists()]


def test_every_guide_is_linked_from_the_readme():
    assert not set(GUIDES) - set(LINK.findall(README))


def test_paths_in_prose_are_there():
    shown = [WRITTEN.sub("", span) for span in SPANS]
    paths = [path for span in shown for path in FILE.findall(span) if "/" in path]
    assert "tests/workflows/test_pretrain.py" in paths
    there = {path for path in paths if (REPOSITORY / path).exists()}
    assert set(paths) - there <= IN_A_RUN_FOLDER


def test_the_snippet_runs_with_a_model_folder(tmp_path, monkeypatch):
    tokenizer = train_wordpiece(["The encoder goes anywhere."] * 3, 60, lowercase=True)
    size = {"vocab_size": tokenizer.get_vocab_size()}
    model = Bert.for_pretraining(SIZES["tiny"].model_copy(update=size))
    save_model_folder(tmp_path / "MODEL_FOLDER", model, tokenizer, "# A card\n")
    monkeypatch.chdir(tmp_path)
    (snippet,) = (text for kind, text in FENCES if kind == "python")
    names = {}
    exec(compile(snippet, "README.md", "exec"), names)
    for name, weight in names["predictor"].model.heads.state_dict().items():
        assert torch.equal(weight, model.heads.state_dict()[name])
    assert names["vectors"].shape == (2, model.config.hidden_size)
    assert len(names["filled"].masks[0].candidates) == 5


@pytest.fixture(scope="module")
def text(repository):
    return (repository / "docs" / "tpu.md").read_text(encoding="utf-8")


def test_the_table_of_profiles_is_that_of_the_files(text):
    slices = []
    for path in LAYERS["profile"].glob("tpu-*.yaml"):
        cluster = yaml.safe_load(path.read_text())["cluster"]
        slices.append((tpu_slice(cluster["tpu"], cluster["topology"]), path.stem))
    slices.sort(key=lambda each: (each[0].generation, each[0].num_chips))
    rows = [
        f"| `{name}` | {one.num_chips} | {one.num_hosts} | {one.topology} |" for one, name in slices
    ]
    assert rows == [line for line in text.splitlines() if line.startswith("| `tpu-")]


def test_an_error_is_quoted_as_it_comes(text):
    with pytest.raises(ValidationError) as caught:
        ClusterSettings(tpu="v5e", topology="4x4", num_workers=3)
    quoted = "a slice v5e 4x4 has 4 hosts with one worker each: 3 workers do not fit 1 slice"
    assert quoted in str(caught.value) and quoted in text
