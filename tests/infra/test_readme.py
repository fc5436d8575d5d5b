"""The commands of infra/README.md for Kubernetes: what they apply and name is there.

What else a README must hold is in tests/docs/test_readme.py, for this one too.
"""

import re
from pathlib import Path

import yaml

INFRA = Path(__file__).parents[2] / "infra"
README = (INFRA / "README.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.partition("#")[0].split()
    for fence in FENCES
    for line in fence.splitlines()
    if line.startswith("kubectl ")
]


def objects(folder):
    """The objects of a folder of manifests, as kubectl names them, and their namespaces."""
    for path in folder.rglob("*.yaml"):
        for each in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if each and "metadata" in each:
                yield f"{each['kind'].lower()}/{each['metadata']['name']}", each["metadata"]


def test_what_is_applied_is_there_and_what_is_deleted_was_applied():
    applied = [words[3] for words in COMMANDS if words[1:3] == ["apply", "-k"]]
    deleted = [words[3] for words in COMMANDS if words[1:3] == ["delete", "-k"]]
    assert len(applied) >= 4
    assert set(deleted) <= set(applied)
    root = INFRA.parent
    assert not [each for each in applied if not (root / each / "kustomization.yaml").is_file()]


def test_what_is_asked_for_by_name_is_made_by_a_file():
    made = dict(objects(INFRA / "kuberay"))
    # KubeRay gives the job that submits a RayJob the same name.
    made |= {f"job/{name[7:]}": data for name, data in made.items() if name.startswith("rayjob/")}
    asked = [word for words in COMMANDS for word in words if re.fullmatch("[a-z]+/[a-z-]+", word)]
    assert len(asked) >= 4
    assert not [each for each in asked if each not in made]
    for words in COMMANDS:
        if any(word in made for word in words):
            assert words[1:3] == ["-n", "bertline"]


def test_each_folder_of_infra_is_told_of():
    folders = [path.name for path in INFRA.iterdir() if path.is_dir()]
    assert "ray" in folders
    assert not [name for name in folders if f"]({name}/" not in README]
