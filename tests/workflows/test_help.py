"""`--help` of every command: examples that run, common settings first, no heavy library."""

import json
import shlex
import subprocess
import sys
from functools import partial

import pytest
from pydantic import BaseModel, Field

from bert_core.command_help import (
    Example,
    Guide,
    HelpShown,
    Option,
    described,
    format_help,
    help_of_settings,
)
from bert_core.errors import UserError
from serving.settings import parse_arguments
from workflows import audit, cli, finetune, tune
from workflows.ablations.settings import parse as parse_ablation
from workflows.demo import DemoSettings
from workflows.evaluation.settings import EvaluateSettings
from workflows.inference.extraction import ExtractSettings
from workflows.inference.predict_settings import PredictSettings
from workflows.mine_negatives import MineSettings
from workflows.paper.suite_settings import PicturesSettings, Table7Settings
from workflows.portable.settings import ExportSettings
from workflows.prepare import PrepareSettings
from workflows.pretraining.settings import AdaptSettings, PretrainSettings
from workflows.promotion.decision import HistorySettings, PromoteSettings, RollbackSettings
from workflows.quantization.settings import QuantizeSettings
from workflows.registry import LineageSettings
from workflows.reproduce import ReproduceSettings
from workflows.settings import parse_command_line

SETTINGS = {
    "prepare": PrepareSettings,
    "mine-negatives": MineSettings,
    "pretrain": PretrainSettings,
    "adapt": AdaptSettings,
    "evaluate": EvaluateSettings,
    "evaluate --suite table7": Table7Settings,
    "evaluate --suite pictures": PicturesSettings,
    "reproduce": ReproduceSettings,
    "predict": PredictSettings,
    "extract": ExtractSettings,
    "demo": DemoSettings,
    "quantize": QuantizeSettings,
    "export": ExportSettings,
    "promote": PromoteSettings,
    "promote rollback": RollbackSettings,
    "promote history": HistorySettings,
    "registry lineage": LineageSettings,
}
PARSERS = {
    "audit": audit.parse,
    "finetune": finetune.parse,
    "tune": tune.parse,
    "ablate": parse_ablation,
    "serve": parse_arguments,
} | {command: partial(parse_command_line, kind) for command, kind in SETTINGS.items()}
"""How each command reads its arguments."""


@pytest.fixture(scope="module")
def pages():
    """The help of each command, read in one process that then says what it has imported."""
    code = (
        "import dataclasses, json, sys\n"
        "from workflows.cli import command_help\n"
        "pages = {each: command_help(*each.split()) for each in sys.argv[1:]}\n"
        "pages = {name: dataclasses.asdict(page) for name, page in pages.items()}\n"
        "print(json.dumps([pages, sorted({name.split('.')[0] for name in sys.modules})]))\n"
    )
    command = [sys.executable, "-c", code, *PARSERS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_every_command_has_a_page():
    of_commands = {command.split()[0] for command in PARSERS}
    assert of_commands | {"completion"} == set(cli.VERBS)
    others = {
        f"{verb} {words}" for verb, all_words in cli.OTHER_HELP.items() for words in all_words
    }
    assert others - {"evaluate --suite glue"} <= PARSERS.keys()


def test_help_of_no_command_loads_a_heavy_library(pages):
    _, imported = pages
    heavy = {"torch", "ray", "mlflow", "fastapi", "starlette", "uvicorn", "pyarrow", "pandas"}
    assert "pydantic" in imported and not heavy & set(imported)


@pytest.mark.parametrize("command", PARSERS)
def test_a_page_begins_with_examples_that_parse_and_common_settings(pages, command):
    page = pages[0][command]
    assert page["program"] == f"bertline {command}"
    assert len(page["examples"]) == 3
    for example in page["examples"]:
        PARSERS[command](shlex.split(example["arguments"]))
    common = [option["name"] for option in page["common"]]
    rest = [option["name"] for part in page["sections"] for option in part["options"]]
    assert len(common) <= 10 and (len(common) == 10 or not rest)
    assert len({*common, *rest}) == len(common) + len(rest)
    assert all(option["description"] for option in page["common"])


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        ("audit", ["--exclude", "--fold", "--tracking.register_as", "--decisions.temperature"]),
        ("tune", ["--train", "--dev", "--test"]),
        ("ablate", ["--tracking.register_as"]),
    ],
)
def test_help_shows_no_option_that_the_command_refuses(pages, command, refused):
    page = pages[0][command]
    shown = {option["name"] for part in page["sections"] for option in part["options"]}
    shown |= {option["name"] for option in page["common"]}
    assert not shown & {*refused} and "--tracking.experiment" in shown


def test_an_example_that_is_out_of_date_is_found():
    with pytest.raises(UserError, match="did you mean preset"):
        PARSERS["pretrain"](["--prset", "mini"])


def test_a_wrong_option_of_the_server_is_one_line_with_the_nearest():
    with pytest.raises(UserError, match="did you mean port: --prot .see --help"):
        parse_arguments(["--model", "a", "--prot", "1"])


class Oven(BaseModel):
    """The oven."""

    minutes: int = Field(default=40, description="baking time")
    max_tokens: int | None = Field(default=None, description="none by default")
    steam: bool = Field(default=False, description="add steam")
    fan: bool = Field(default=True, description="move the air")


class Bread(BaseModel):
    """Bakes bread.

    Slowly.
    """

    flour: str = Field(description="kind of flour")
    peak_learning_rate: float = Field(default=1e-5, description="how fast")
    shape: tuple[str, ...] = Field(default=("round", "flat"), description="shapes")
    oven: Oven = Oven()


def options(page):
    return {option.name: option for option in page.options}


def test_the_parts_of_a_page():
    guide = Guide((Example("rye", "--flour rye --oven.minutes 50"),), ("flour", "oven.minutes"))
    page = help_of_settings("bake", Bread, guide)
    assert (page.summary, page.details) == ("Bakes bread.", ("Slowly.",))
    assert page.usage == "bake --flour FLOUR [OPTIONS]"
    assert [option.name for option in page.common] == ["--flour", "--oven.minutes"]
    assert [part.title for part in page.sections] == ["General", "Oven"]
    found = options(page)
    assert found["--flour"].required and found["--flour"].type == "text"
    assert found["--shape"].type == "list of text" and found["--shape"].default == "round flat"
    assert found["--oven.steam"].type == "flag" and not found["--oven.steam"].other_name
    assert found["--oven.fan"].other_name == "--no-oven.fan"
    assert described(found["--peak_learning_rate"]) == "how fast [default: 1e-5 per step]"
    assert described(found["--oven.max_tokens"]) == "none by default [tokens]"
    with pytest.raises(AssertionError, match="--floor"):
        help_of_settings("bake", Bread, Guide((), ("floor",)))


@pytest.mark.parametrize("columns", [60, 80, 100, 300])
def test_help_fits_the_terminal_and_names_everything(columns):
    arguments = "--flour rye --oven.minutes 50 --oven.max_tokens 12 --shape round flat --oven.steam"
    page = help_of_settings("bake", Bread, Guide((Example("rye", arguments),), ("flour",)))
    text = format_help(page, columns)
    lines = text.splitlines()
    assert lines[0].startswith("usage: bake ") and max(map(len, lines)) <= min(columns, 100)
    assert text.index("Examples") < text.index("Common settings") < text.index("Oven")
    assert all(f"  {name}" in text for name in options(page))
    (example,) = [part for part in text.split("\n\n") if part.startswith("Examples")]
    typed = shlex.split(example.partition("# rye\n")[2].replace("\\\n", " "))
    assert typed == ["bake", *arguments.split()]


def test_the_defaults_are_those_of_what_is_chosen(capsys):
    for chosen in ([], ["--preset", "mini"], ["--preset", "base", "--profile", "gpu"]):
        settings = parse_command_line(PretrainSettings, chosen)
        with pytest.raises(HelpShown) as shown:
            parse_command_line(PretrainSettings, [*chosen, "--help"])
        found = options(shown.value.page)
        phases = [phase.model_dump(exclude_unset=True) for phase in settings.phases]
        assert json.loads(found["--phases"].default) == phases
        rows = settings.batch.global_batch_size
        assert found["--batch.global_batch_size"].default == str(rows)
        assert found["--model.size"].default == settings.model.size
        assert found["--precision"].default == settings.precision
        assert found["--preset"].default == "quickstart"
        text = capsys.readouterr().out
        name = settings.preset
        assert f"below are those of --preset {name} --profile {settings.profile}" in text
    page = help_of_settings("bake", Bread, Guide(), {"flour": "rye", "oven": {"steam": True}})
    assert page.usage == "bake [OPTIONS]" and options(page)["--flour"].default == "rye"
    guide = Guide()
    told = type("Toast", (Bread,), {"__annotations__": {"oven": Oven}, "oven": Oven(minutes=4)})
    assert options(help_of_settings("toast", told, guide))["--oven.minutes"].default == "4"
    steam = options(page)["--oven.steam"]
    assert (steam.default, steam.other_name) == ("yes", "--no-oven.steam")


def test_a_value_of_one_has_a_singular_unit():
    workers = Option("--num_workers", "integer", "1", "processes", "workers")
    assert described(workers) == "workers [default: 1 process]"
