"""What `kubectl apply -k` sends: every file, with the images of one's own registry."""

import re
import shutil
import subprocess

import pytest
from manifest_schemas import faults
from manifests import FILES, FOLDER, manifests
from yaml_files import document, read_documents

PARTS = sorted(path.parent.name for path in FILES if path.name == "kustomization.yaml")
PARTS.remove("images")


@pytest.mark.parametrize("part", PARTS)
def test_each_folder_lists_its_files_and_takes_the_images(part):
    kustomization = document(FOLDER / part / "kustomization.yaml")
    assert kustomization["kind"] == "Kustomization"
    files = {path.name for path in (FOLDER / part).iterdir()} - {"kustomization.yaml"}
    assert sorted(kustomization["resources"]) == sorted(files)
    assert kustomization["components"] == ["../images"]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The folder as somebody has it who has pushed the images to a registry."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed here")
    folder = tmp_path_factory.mktemp("infra") / "kuberay"
    shutil.copytree(FOLDER, folder)
    images = folder / "images" / "kustomization.yaml"
    text = images.read_text()
    images.write_text(text.replace("newName: ", "newName: r.io/x/").replace("0.1.0", "0.1.1"))
    return folder


@pytest.mark.parametrize("part", PARTS)
def test_kustomize_sends_what_is_valid_from_the_registry(elsewhere, part):
    done = subprocess.run(
        ["kubectl", "kustomize", elsewhere / part], capture_output=True, text=True, check=True
    )
    sent = read_documents(done.stdout)
    written = [
        each for name, some in manifests().items() if name.startswith(f"{part}/") for each in some
    ]
    assert len(sent) == len(written) > 0
    images = re.findall(r"image: (\S+)", done.stdout)
    ours = [each for each in images if "bertline" in each]
    assert ours and all(re.fullmatch(r"r\.io/x/bertline-\w+:0\.1\.1", each) for each in ours)
    assert [each for each in sent if faults(each)] == []
