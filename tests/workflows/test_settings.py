import json
import subprocess
import sys

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

from bert_core.errors import UserError
from workflows import settings as settings_module
from workflows.settings import (
    CommandLineSettings,
    differences,
    field_names,
    parse_command_line,
    read_layer,
    settings_hash,
)


class Oven(BaseModel):
    """How the bread is baked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    degrees: float = Field(default=220, ge=0, description="temperature, in degrees Celsius")
    minutes: int = Field(default=40, description="time, in minutes")
    steam: bool = Field(default=False, description="whether water is added")


class Bread(CommandLineSettings):
    """Bakes bread."""

    preset: str = Field(default="white", description="which bread")
    profile: str | None = Field(default=None, description="where")
    name: str | None = Field(default=None, description="what it is called")
    flours: list[str] = Field(default=["wheat"], description="what is in it")
    oven: Oven = Field(default_factory=Oven)


@pytest.fixture(autouse=True)
def layers(tmp_path, monkeypatch):
    """Presets and profiles of our own."""
    files = {
        "presets/white.yaml": {"oven": {"minutes": 35}},
        "presets/rye.yaml": {"flours": ["rye", "wheat"], "oven": {"degrees": 200, "steam": True}},
        "profiles/farm.yaml": {"oven": {"degrees": 300}},
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(yaml.safe_dump(content))
    folders = {"preset": tmp_path / "presets", "profile": tmp_path / "profiles"}
    monkeypatch.setattr(settings_module, "LAYERS", folders)
    return tmp_path


class Dough(CommandLineSettings):
    """Names of several words."""

    rising_minutes: int = Field(default=1, description="minutes")
    is_sour: bool = Field(default=True, description="whether it is sour")
    is_wet: bool | None = Field(default=None, description="whether it is wet")
    flour_name: str = Field(default="", description="a name")


def parse(*arguments):
    return parse_command_line(Bread, arguments)


def refused(*arguments):
    with pytest.raises(UserError) as caught:
        parse(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_lie_under_preset_under_profile_under_the_command_line():
    assert parse().oven == Oven(minutes=35)
    rye = parse("--preset", "rye", "--profile=farm")
    assert rye.flours == ["rye", "wheat"]
    assert rye.oven == Oven(degrees=300, minutes=40, steam=True)
    assert parse("--preset=rye", "--profile", "farm", "--oven.degrees", "250").oven.degrees == 250


def test_values_as_one_writes_them(layers):
    assert parse("--oven.steam", "true").oven.steam
    assert parse("--oven.steam").oven.steam
    assert not parse("--preset", "rye", "--oven.steam", "false").oven.steam
    assert not parse("--preset", "rye", "--no-oven.steam").oven.steam
    assert parse("--oven.steam=True", "--name", "a").oven.steam
    assert not parse("--preset", "rye", "--oven.steam=false").oven.steam
    assert "--oven.steam" in refused("--oven.steam=maybe")
    assert parse("--flours", "rye", "--flours", "spelt").flours == ["rye", "spelt"]
    assert parse("--flours", '["rye"]').flours == ["rye"]
    assert parse("--name", "null").name is None
    (layers / "mine.yaml").write_text("oven: {degrees: 2.3e2}")  # YAML takes this for a text
    assert parse("--preset", str(layers / "mine.yaml")).oven.degrees == 230


def test_the_environment_decides_nothing(monkeypatch):
    for name in ("NAME", "OVEN__DEGREES", "OVEN", "PRESET"):
        monkeypatch.setenv(name, "5")
        monkeypatch.setenv(name.lower(), "5")
    assert parse() == Bread(oven=Oven(minutes=35))


def test_hyphens_are_as_good_as_underscores(layers):
    assert parse_command_line(Dough, ["--rising-minutes", "5"]).rising_minutes == 5
    assert parse_command_line(Dough, ["--rising-minutes=6", "--no-is-sour"]).is_sour is False
    assert parse_command_line(Dough, ["--is-sour", "true"]).is_sour
    assert parse_command_line(Dough, ["--is-sour=false", "--is-wet", "false"]).is_wet is False
    assert parse_command_line(Dough, ["--is-wet=true"]).is_wet
    assert parse_command_line(Dough, ["--flour-name", "half-white"]).flour_name == "half-white"
    with pytest.raises(UserError, match="did you mean rising_minutes: --rising-minute"):
        parse_command_line(Dough, ["--rising-minute", "5"])


def test_a_mistake_is_one_line_with_the_nearest_name(layers):
    assert "did you mean oven.degrees: --oven.degree " in refused("--oven.degree", "3")
    assert "did you mean oven.minutes: --minutes" in refused("--minutes=3")
    assert "--oven.minutes" in refused("--oven.minutes", "long")
    assert "greater than or equal to 0: --oven.degrees" in refused("--oven.degrees", "-1")
    assert "did you mean rye" in refused("--preset", "ry")
    assert "give one of farm" in refused("--profile", "city")
    (layers / "mine.yaml").write_text("oven: {degres: 200}")
    assert "did you mean oven.degrees: oven.degres" in refused(
        "--preset", str(layers / "mine.yaml")
    )
    for content, part in (("[1", "not YAML"), ("5", "no settings")):
        (layers / "mine.yaml").write_text(content)
        message = refused("--preset", str(layers / "mine.yaml"))
        assert part in message and "mine.yaml" in message


def test_help_names_every_field_with_its_description(capsys):
    with pytest.raises(SystemExit) as ended:
        parse("--help")
    printed = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for name in field_names(Bread):
        assert f"--{name}" in printed
    assert "temperature, in degrees Celsius" in printed and "default: 220" in printed


def test_what_is_written_down_can_be_read_back(layers):
    baked = parse("--preset", "rye", "--oven.minutes", "50", "--name", "loaf")
    values = baked.model_dump(mode="json", exclude={"preset", "profile"})
    (layers / "again.yaml").write_text(yaml.safe_dump(values))
    again = parse("--preset", str(layers / "again.yaml"))
    assert again.model_dump(exclude={"preset"}) == baked.model_dump(exclude={"preset"})


def test_names_hashes_and_differences():
    assert field_names(Bread, kind=bool) == ["oven.steam"]
    old, new = Bread().model_dump(), Bread(name="loaf", oven=Oven(minutes=3)).model_dump()
    assert differences(old, new) == ["name: None -> loaf", "oven.minutes: 40 -> 3"]
    assert settings_hash(old) != settings_hash(new) and len(settings_hash(old)) == 8
    assert settings_hash(old) == settings_hash(json.loads(json.dumps(old))), "order is no matter"


@pytest.mark.parametrize(
    "command",
    [
        "pretrain.py --optimizer.peak_learning_rat 1",
        "pretrain.py --shards nowhere --storage new",
        "prepare.py --text nowhere --output new",
        "finetune.py --task mrpc --bach_size 8",
        "tune.py --task mrpc --search gird",
    ],
)
def test_mistakes_do_not_wait_for_torch_and_ray(
    command, repository, tmp_path, subprocess_environment
):
    script, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", repository / "workflows" / script, *arguments],
        cwd=tmp_path,
        env=subprocess_environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    times = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    loaded = {line.split("|")[-1].strip() for line in times}
    assert "pydantic" in loaded
    assert not loaded & {"torch", "ray", "mlflow"}
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("text", ["ü", "it's", 'a"b', "a\\b", "\\", "[x]", "{1}", "a b"])
def test_a_value_of_a_list_may_have_any_character(text):
    for given in (["--flours", text, "rye"], [f"--flours={text}", "--flours=rye"]):
        assert parse_command_line(Bread, given).flours == [text, "rye"]


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"a: [", b"1: 2", b"[a]", b"a: 2020-13-45", b"- " * 5000, b"a: 1\na: 2"],
)
def test_a_settings_file_that_is_none_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "some.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_layer("preset", str(path), tmp_path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UserError, match="not a regular file|cannot be read"):
        read_layer("preset", str(tmp_path / "none.yaml"), tmp_path)
