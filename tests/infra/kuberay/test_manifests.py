"""Manifests: kustomizations, schemas, and names that refer to each other."""

import copy
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml
from manifests import (
    FILES,
    FOLDER,
    NAMESPACE,
    SECRETS,
    chosen,
    environment_of,
    faults,
    keys_told,
    manifests,
    of_kind,
    pods,
)
from yaml_files import INFRA, document, documents, misspelt, places, read_documents

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


@pytest.mark.some(2)
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
    ours = [image for image in images if "bertline" in image]
    assert ours and all(re.fullmatch(r"r\.io/x/bertline-\w+:0\.1\.1", our) for our in ours)
    assert [each for each in sent if faults(each)] == []


FREE = {
    *("data", "labels", "annotations", "matchLabels", "nodeSelector", "rayStartParams"),
    *("requests", "limits"),
}
"""Maps whose keys are names of somebody's own; other tests look at them."""
SERVICE_SELECTOR = ("Service", ("spec", "selector"))
KINDS = {
    *("Namespace", "ServiceAccount", "ConfigMap", "PersistentVolumeClaim", "Service", "Job"),
    *("Deployment", "StatefulSet", "NetworkPolicy", "PodDisruptionBudget"),
    *("RayCluster", "RayJob", "RayService", "Kustomization", "Component"),
}


def every_document():
    return [
        pytest.param(each, id=f"{path.relative_to(FOLDER)}-{number}")
        for path in FILES
        for number, each in enumerate(documents(path))
    ]


@pytest.mark.parametrize("manifest", every_document())
def test_the_document_is_valid(manifest):
    assert faults(manifest) == []


def test_all_kinds_are_here():
    assert {each.values[0]["kind"] for each in every_document()} == KINDS
    assert not [path for path in FOLDER.rglob("*") if path.is_file() and path not in FILES]


def is_a_name(place, kind):
    """Whether a key is somebody's own word, as those of labels are."""
    return place[-2:-1] and (place[-2] in FREE or (kind, place[:-1]) == SERVICE_SELECTOR)


@pytest.mark.some(5)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_any_misspelt_key_is_found(kind):
    found = [each.values[0] for each in every_document() if each.values[0]["kind"] == kind]
    tried = {}
    for manifest in found:
        for place in places(manifest):
            if place == ("kind",) or is_a_name(place, kind):
                continue
            # What is spelt alike at the same place of the same kind is tried once.
            shape = tuple("[]" if isinstance(each, int) else each for each in place)
            tried.setdefault(shape, (manifest, place))
    assert len(tried) >= 3
    missed = [
        ".".join(shape)
        for shape, (manifest, place) in tried.items()
        if not faults(misspelt(manifest, place))
    ]
    assert missed == []


@pytest.mark.parametrize(
    ("file", "place", "value"),
    [
        ("pretrain-gpu/job.yaml", ("spec", "backoffLimit"), "three"),
        ("cluster/cluster.yaml", ("spec", "authOptions", "mode"), "tokens"),
        ("serve/service.yaml", ("spec", "serveConfigV2"), {"applications": []}),
        ("prepare/job.yaml", ("spec", "template", "spec", "containers", 0, "image"), 7),
        ("base/namespace.yaml", ("apiVersion",), "v2"),
    ],
)
def test_wrong_values_are_found(file, place, value):
    manifest = holder = copy.deepcopy(manifests()[file][0])
    for key in place[:-1]:
        holder = holder[key]
    assert holder[place[-1]] != value
    holder[place[-1]] = value
    assert faults(manifest)


def test_a_key_that_stands_twice_is_refused():
    assert read_documents("a: {b: 1}\nc: 1\n---\n---\na: 2\n") == [
        {"a": {"b": 1}, "c": 1},
        {"a": 2},
    ]
    with pytest.raises(yaml.YAMLError, match="b stands here twice"):
        read_documents("a: {b: 1, c: 2, b: 1}\n")
    # What a merge brings may be said anew.
    assert read_documents("a: &x {b: 1}\nc: {<<: *x, b: 2}\n")[0]["c"] == {"b": 2}


NOTE = (FOLDER / "base" / "settings.yaml").read_text(encoding="utf-8")


def test_the_commands_that_make_the_secrets_are_told():
    command = r"# +kubectl -n bertline create secret generic ([\w-]+)((?:.*\n#   (?:  |#))*.*)"
    told = {name: keys_told(rest) for name, rest in re.findall(command, NOTE)}
    assert told == SECRETS


def test_no_secret_stands_in_a_file():
    assert not of_kind("Secret")
    for pod in pods():
        for container in pod.containers:
            for variable in container.get("env", []):
                hidden = re.search("PASSWORD|TOKEN|SECRET|KEY", variable["name"])
                assert not hidden or "secretKeyRef" in variable["valueFrom"], variable["name"]
    for config in of_kind("ConfigMap").values():
        assert not [key for key in config["data"] if re.search("PASSWORD|SECRET|TOKEN$", key)]


def names_in(pod):
    """Each name of something else in a pod's spec, as (kind, name, key or None)."""
    yield "ServiceAccount", pod.spec["serviceAccountName"], None
    for volume in pod.spec.get("volumes", []):
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"], None
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"], None
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"], None
    for container in pod.containers:
        for source in container.get("envFrom", []):
            ((kind, content),) = source.items()
            yield {"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind], content["name"], None
        for variable in container.get("env", []):
            if "secretKeyRef" in variable.get("valueFrom", {}):
                reference = variable["valueFrom"]["secretKeyRef"]
                yield "Secret", reference["name"], reference["key"]
        for mount in container.get("volumeMounts", []):
            if "subPath" in mount:
                yield "Key", mount["name"], mount["subPath"]


def test_what_pods_name_is_there():
    used = set()
    for pod in pods():
        for kind, name, key in names_in(pod):
            if kind == "Secret":
                assert name in SECRETS and (key is None or key in SECRETS[name])
                used.add(name)
            elif kind == "Key":
                (volume,) = [each for each in pod.spec["volumes"] if each["name"] == name]
                assert key in SECRETS[volume["secret"]["secretName"]]
            else:
                assert name in of_kind(kind), (pod.name, kind, name)
                used.add(name)
    assert set(SECRETS) <= used
    assert set(of_kind("ConfigMap")) <= used
    assert set(of_kind("ServiceAccount")) <= used
    assert set(of_kind("PersistentVolumeClaim")) <= used


def test_what_is_mounted_is_a_volume_and_every_volume_is_mounted():
    claims = {"postgres": {"files"}}
    for pod in pods():
        volumes = {each["name"] for each in pod.spec.get("volumes", [])}
        mounted = {
            mount["name"]
            for container in pod.containers
            for mount in container.get("volumeMounts", [])
        }
        assert mounted == volumes | claims.get(pod.name, set()), pod.name


def test_variables_that_a_command_takes_are_set():
    taken = 0
    for pod in pods():
        for container in pod.containers:
            words = [*container.get("command", []), *container.get("args", [])]
            words += [str(each.get("value")) for each in container.get("env", [])]
            for name in re.findall(r"\$\((\w+)\)", " ".join(words)):
                assert name in environment_of(container), (pod.name, name)
                taken += 1
    assert taken >= 3


def test_everything_lies_in_the_one_namespace():
    assert set(of_kind("Namespace")) == {NAMESPACE}
    for name, some in manifests().items():
        for manifest in some:
            if manifest["kind"] != "Namespace":
                assert manifest["metadata"]["namespace"] == NAMESPACE, name


def test_services_find_their_pods_and_ports():
    services = of_kind("Service")
    for service in services.values():
        (pod,) = chosen({"matchLabels": service["spec"]["selector"]})
        (container,) = pod.spec["containers"]
        known = {each["name"]: each["containerPort"] for each in container["ports"]}
        for port in service["spec"]["ports"]:
            assert known[port["targetPort"]] == port["port"]
    for workload in of_kind("Deployment", "StatefulSet").values():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"] == {"matchLabels": labels}
    assert of_kind("StatefulSet")["postgres"]["spec"]["serviceName"] in services
    addresses = [
        of_kind("ConfigMap")["bertline"]["data"]["MLFLOW_TRACKING_URI"],
        *re.findall(r"postgresql\+psycopg2://\w+@[\w:]+", str(of_kind("Deployment")["mlflow"])),
    ]
    assert len(addresses) == 2
    for address in addresses:
        name, port = re.search(r"//(?:\w+@)?(\w+):(\d+)", address).groups()
        assert int(port) in {each["port"] for each in services[name]["spec"]["ports"]}


def test_images_are_pinned_and_ours_are_listed():
    (component,) = documents(FOLDER / "images" / "kustomization.yaml")
    listed = {each["name"]: each["newTag"] for each in component["images"]}
    version = tomllib.loads((INFRA.parent / "pyproject.toml").read_text())["project"]["version"]
    used = {container["image"] for pod in pods() for container in pod.containers}
    for image in used:
        name, tag = image.split(":")
        assert tag != "latest"
        if name.startswith("bertline"):
            assert listed[name] == tag == version
    assert {image.split(":")[0] for image in used} == {*listed, "postgres"}
