"""The examples of a page, run as they stand, and what they print beside what the page shows."""

import os
import re
import subprocess

FENCE = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VERSION = re.compile(r"(?<=version)\W+[0-9a-f]{12}\b")
FRACTION = re.compile(r"(?<![\w.])\d+\.\d+(?:e-\d+)?")


def blocks(path):
    """The blocks of a page: the line at which each begins, its kind, its text."""
    text = path.read_text(encoding="utf-8")
    return [(text[: each.start(2)].count("\n"), *each.groups()) for each in FENCE.finditer(text)]


def differences(printed, shown):
    """What is not as shown, but for spaces, versions, and fractions by more than 0.01."""
    same = [FRACTION.sub("#", VERSION.sub("", each)) for each in (printed, shown)]
    if "".join(same[0].split()) != "".join(same[1].split()):
        return f"printed:\n{printed}\nshown:\n{shown}"
    pairs = zip(FRACTION.findall(printed), FRACTION.findall(shown), strict=True)
    return [pair for pair in pairs if abs(float(pair[0]) - float(pair[1])) > 0.01]


def follow(page, capsys, rewrite=str):
    """Runs the blocks of a page; what each prints has to be what the page shows after it."""
    namespace, printed, num_shown = {}, "", 0
    for line, kind, text in page:
        code = rewrite(text)
        if kind == "sh":
            command = ["bash", "-euc", code]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ.copy())
            assert done.returncode == 0, done.stderr
            printed = done.stdout
        elif kind == "python":
            exec(compile("\n" * line + code, "the page", "exec"), namespace)
            printed = capsys.readouterr().out
        else:
            wrong = differences(printed, text)
            assert not wrong, f"line {line}: {wrong}"
            num_shown += 1
    assert num_shown == sum(kind != "text" for _, kind, _ in page)
