import pickle

from bert_core.errors import UserError, nearest, one_line


class MissingText(UserError):
    """As a module may derive its own."""


def test_an_error_is_one_line_of_three_parts():
    error = UserError("no such file", "a.txt", "give a path")
    assert str(error) == "no such file: a.txt (give a path)"
    assert (error.what, error.where, error.remedy) == ("no such file", "a.txt", "give a path")


def test_an_error_crosses_process_borders_whole():
    error = pickle.loads(pickle.dumps(MissingText("no text", "a folder", "add some")))
    assert type(error) is MissingText
    assert str(error) == "no text: a folder (add some)"
    assert error.remedy == "add some"


def test_the_nearest_name():
    assert nearest("tempates", ["templates", "examples"]) == ", did you mean templates"
    assert nearest("xyz", ["templates"]) == ""
    assert nearest("templates" * 1_000_000, ["templates"]) == ""  # and takes no time
    assert nearest("lost", {"second_to_last": 1, "last": 2}) == ", did you mean last"
    fields = ["oven.degrees", "oven.minutes", "flour"]
    assert nearest("oven.degres", fields) == ", did you mean oven.degrees"
    assert nearest("minute", fields) == ", did you mean oven.minutes"


def test_a_text_of_any_origin_is_printed_on_one_line():
    assert one_line("a\nb\tc") == "a b c"
    assert one_line("\x1b[31m\0\u202e\ud800") == r"\x1b[31m\x00\u202e\ud800"
    assert one_line("Zoë 中文 👨\u200d👩\u200d👧") == "Zoë 中文 👨\u200d👩\u200d👧"
    assert "\n" not in str(UserError("unknown label", "a\nb", "the model knows c\nd"))


def test_a_message_is_one_line_whatever_a_file_has_put_into_it():
    error = UserError("a label a\nb", f"a\r\u2028{'x' * 10_000}", "mend \ud800 it")
    assert len(str(error)) < 2100 and len(str(error).splitlines()) == 1
    str(UserError("a", "b", "\ud800")).encode()


def test_of_parts_that_are_too_long_the_others_are_still_said():
    error = UserError("no \x1b" * 10**6, f"{'a/' * 10**6}config.json", "restore the file")
    assert len(str(error)) < 2100
    assert str(error).startswith("no \\x1b")
    assert str(error).endswith("config.json (restore the file)")
