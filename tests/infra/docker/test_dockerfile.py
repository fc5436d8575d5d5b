"""The Dockerfile: what hadolint says of it, and what its images are and are not."""

import re
import subprocess
import sys
import tomllib

import pytest
from compose_files import DOCKERFILE, FOLDER, services
from manifests import FOLDER as KUBERAY
from yaml_files import INFRA, document

REPOSITORY = INFRA.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILDS = {"gcc", "g++", "make", "cmake", "build-essential", "git", "python3-pip", "python3-venv"}


def stages(text):
    """Each stage: its name -> what it is made from, and its instructions."""
    found = {}
    joined = re.sub(r"\\\n(?:\s*#.*\n)*", " ", text)
    for line in joined.splitlines():
        if match := re.match(r"FROM (\S+) AS (\S+)$", line):
            found[match[2]] = (match[1], instructions := [])
        elif line.strip() and not line.startswith("#"):
            instructions.append(line.strip())
    return found


STAGES = stages(DOCKERFILE.read_text(encoding="utf-8"))
TARGETS = ("cpu", "cuda", "tpu", "mlflow")


def whole(name):
    """All instructions that an image comes of, without the stages that it copies from."""
    base, own = STAGES[name]
    return [*(whole(base) if base in STAGES else []), *own]


def installed(name):
    """What apt-get installs in an image."""
    lines = [line for line in whole(name) if "apt-get install" in line]
    words = re.findall(r"--no-install-recommends ([^&]+)&&", " ".join(lines))
    return set(" ".join(words).split())


def hadolint(text):
    done = subprocess.run(["hadolint", "-"], input=text, capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode else ""


def test_hadolint_has_nothing_to_say():
    assert hadolint(DOCKERFILE.read_text(encoding="utf-8")) == ""


@pytest.mark.parametrize(
    ("there", "instead", "rule"),
    [
        ("WORKDIR /build", "WORKDIRS /build", "missing whitespace"),
        ("debian:12.12-slim", "debian:latest", "DL3007"),
        ("debian:12.12-slim", "debian", "DL3006"),
        ("USER 1000:1000", "USER root", "DL3002"),
        ("--no-install-recommends ca", "ca", "DL3015"),
        ("WORKDIR /build", "WORKDIR build", "DL3000"),
    ],
)
def test_a_fault_is_found(there, instead, rule):
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert there in text
    assert rule in hadolint(text.replace(there, instead))


def test_one_release_of_one_system_is_under_all():
    outside = {base for base, _ in STAGES.values() if base not in STAGES}
    assert outside == {"debian:12.12-slim"}


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_nobody_special_and_builds_nothing(target):
    users = [line for line in whole(target) if line.startswith("USER ")]
    assert users[-1] == "USER 1000:1000"
    # Triton compiles while it runs: the Dockerfile says so.
    allowed = {"gcc"} if target == "cuda" else set()
    assert installed(target) & BUILDS == allowed
    assert {"ca-certificates", "python3"} <= installed(target)
    assert "python3-pip" in installed("builder")


@pytest.mark.parametrize("target", TARGETS)
def test_packages_have_the_versions_that_are_tested(target):
    (line,) = [line for line in whole(target) if line.startswith("COPY --from=")]
    made = whole(re.search(r"--from=(\S+)", line)[1])
    assert any("PIP_CONSTRAINT=/build/constraints.txt" in each for each in made)
    assert any(each.startswith("COPY") and "constraints.txt" in each for each in made)
    for each in made:
        assert not re.search(r"pip install .*(==|--upgrade)", each)
    takes_torch_first = any('--index-url "$TORCH_INDEX"' in each for each in made)
    assert takes_torch_first == (target in ("cpu", "tpu"))


def test_kubernetes_and_compose_name_no_other_image_of_ours():
    made = {f"bertline-{target}" for target in TARGETS}
    listed = document(KUBERAY / "images" / "kustomization.yaml")["images"]
    assert {each["name"] for each in listed} == made
    gpu = document(FOLDER / "compose.gpu.yaml")["services"]
    for service in [*services().values(), *gpu.values()]:
        name, version = service["image"].split(":")
        if name.startswith("bertline"):
            assert name in made and version == PROJECT["version"]
            target = service.get("build", {}).get("target")
            assert target is None or name == f"bertline-{target}"


def requirements(*extras):
    done = subprocess.run(
        [sys.executable, FOLDER / "requirements.py", *extras],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_requirements_are_the_project_s():
    assert requirements() == PROJECT["dependencies"]
    tpu = PROJECT["optional-dependencies"]["tpu"]
    assert requirements("tpu") == [*PROJECT["dependencies"], *tpu]


def test_what_is_copied_is_let_in_and_nothing_else_is():
    lines = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*" and rules[-2:] == ["**/*.json", "**/__pycache__"]
    let_in = {rule.removeprefix("!") for rule in rules[1:-2]}
    copied = {
        source
        for _, instructions in STAGES.values()
        for line in instructions
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied == let_in
    assert all((REPOSITORY / each).exists() for each in copied)
    # What `pip install .` would bring, at least.
    packages = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert {each.rstrip("*") for each in packages["packages"]["find"]["include"]} <= copied
