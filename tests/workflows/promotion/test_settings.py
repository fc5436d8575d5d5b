import pytest

from bert_core.errors import UserError
from workflows.promotion.gate import DROP_ON_DATA
from workflows.promotion.settings import (
    MOST_REASON,
    HistorySettings,
    PromoteSettings,
    RollbackSettings,
)
from workflows.settings import parse_command_line

GIVEN = ["--name", "sentiment", "--version", "3"]


def test_a_reason_is_one_line():
    settings = parse_command_line(PromoteSettings, [*GIVEN, "--reason", "week\n 31 "])
    assert (settings.name, settings.version, settings.reason) == ("sentiment", "3", "week 31")
    assert settings.gate is settings.data is None


def test_a_reason_has_to_fit_into_a_tag():
    parse_command_line(RollbackSettings, [*GIVEN[:2], "--reason", "x" * MOST_REASON])
    with pytest.raises(UserError, match="at most 1000 characters: --reason"):
        parse_command_line(PromoteSettings, [*GIVEN, "--reason", "x" * (MOST_REASON + 1)])


@pytest.mark.parametrize(
    ("settings", "arguments", "match"),
    [
        (PromoteSettings, GIVEN[:2], "Field required: --version"),
        (PromoteSettings, GIVEN[2:], "Field required: --name"),
        (PromoteSettings, [*GIVEN, "--gates", "a"], "unknown setting, did you mean gate: --gates"),
        (HistorySettings, [*GIVEN], "unknown setting"),
    ],
)
def test_what_is_wrong_is_said(settings, arguments, match):
    with pytest.raises(UserError, match=match):
        parse_command_line(settings, arguments)


def test_help_says_what_decides(capsys):
    with pytest.raises(SystemExit):
        parse_command_line(PromoteSettings, ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"beyond {DROP_ON_DATA:g};" in text
    for words in ("95 % interval", "3 the gate refused", "rollback --name", "history --name"):
        assert words in text
