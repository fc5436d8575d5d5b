"""The manifests of infra/kuberay, as kubectl puts them together, and KubeRay's schemas."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from kubernetes_validate import utils
from yaml_files import INFRA, document, documents

FOLDER = INFRA / "kuberay"
FILES = sorted(FOLDER.rglob("*.yaml"))
NAMESPACE = "bertline"
CLUSTERS = {"RayCluster": (), "RayJob": ("rayClusterSpec",), "RayService": ("rayClusterConfig",)}
"""Kinds of KubeRay, and where in the spec the cluster stands."""
SECRETS = {
    "bertline-object-store": {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"},
    "bertline-database": {"password"},
    "bertline-api-keys": {"keys.json"},
}
"""What is made by hand, by the commands in base/settings.yaml and in infra/README.md."""


def keys_told(command: str) -> set[str]:
    """The keys of the secret that a command makes; of a file with lines those beside it."""
    return set(re.findall(r"--from-file=([\w.]+)", command)) | set(
        re.findall(r"\b([A-Z_]+)=…", command)
    )


@dataclass(frozen=True)
class Pods:
    """Pods that are alike, as a manifest describes them."""

    name: str
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def containers(self):
        """All of them, those that run before the others first."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]


@cache
def manifests():
    """Documents by file, without those of kustomize, with what kustomize would do left undone."""
    return {
        path.relative_to(FOLDER).as_posix(): documents(path)
        for path in FILES
        if path.name != "kustomization.yaml"
    }


def of_kind(*kinds):
    """All documents of some kinds, by name."""
    found = [each for some in manifests().values() for each in some if each["kind"] in kinds]
    names = [each["metadata"]["name"] for each in found]
    assert len(set(names)) == len(names)
    return dict(zip(names, found, strict=True))


def cluster_of(manifest):
    """The spec of the Ray cluster in a document of KubeRay's."""
    spec = manifest["spec"]
    for key in CLUSTERS[manifest["kind"]]:
        spec = spec[key]
    return spec


def groups_of(manifest):
    """Head and worker groups of a Ray cluster by name, with the labels that KubeRay adds."""
    spec = cluster_of(manifest)
    groups = {"head": spec["headGroupSpec"]}
    return groups | {each["groupName"]: each for each in spec["workerGroupSpecs"]}


def pods():
    """Every sort of pod that comes of these files."""
    found = []
    for name, manifest in of_kind("Deployment", "StatefulSet", "Job").items():
        template = manifest["spec"]["template"]
        found.append(Pods(name, template["metadata"]["labels"], template["spec"]))
    for name, manifest in of_kind(*CLUSTERS).items():
        for group, content in groups_of(manifest).items():
            template = content["template"]
            added = {"ray.io/node-type": "head" if group == "head" else "worker"}
            labels = template["metadata"]["labels"] | added
            found.append(Pods(f"{name}/{group}", labels, template["spec"]))
        if "submitterPodTemplate" in manifest["spec"]:
            template = manifest["spec"]["submitterPodTemplate"]
            labels = template["metadata"]["labels"]
            found.append(Pods(f"{name}/submitter", labels, template["spec"]))
    return found


def chosen(selector):
    """The pods that a label selector means; an empty one means all."""
    return [pod for pod in pods() if _matches(selector, pod.labels)]


def _matches(selector, labels):
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    wanted = selector.get("matchLabels", {})
    some = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in some)
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        labels.get(each["key"]) in each["values"] for each in some
    )


def environment_of(container):
    """What a container has from config maps and plain values; secrets are not known here."""
    found = {}
    for source in container.get("envFrom", []):
        if "configMapRef" in source:
            found |= of_kind("ConfigMap")[source["configMapRef"]["name"]]["data"]
    return found | {each["name"]: each.get("value") for each in container.get("env", [])}


_UNITS = {"m": 1e-3, "": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def amount(quantity):
    """A quantity as Kubernetes writes it, as a number."""
    number, unit = re.fullmatch(r"(\d+(?:\.\d+)?)(m|Ki|Mi|Gi|Ti|)", str(quantity)).groups()
    return float(number) * _UNITS[unit]


KUBERNETES = "1.37"
_DEFINITIONS = INFRA.parents[1] / "shared" / "schemas" / "kuberay"
_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_IMAGE = {
    "type": "object",
    "properties": {"name": _TEXT, "newName": _TEXT, "newTag": _TEXT},
    "required": ["name", "newName", "newTag"],
    "additionalProperties": False,
}
_KUSTOMIZATION = {
    "type": "object",
    "properties": {
        "apiVersion": {"pattern": r"^kustomize\.config\.k8s\.io/v1(alpha1|beta1)$"},
        "kind": {"enum": ["Kustomization", "Component"]},
        "components": _TEXTS,
        "resources": _TEXTS,
        "images": {"type": "array", "items": _IMAGE},
    },
    "required": ["apiVersion", "kind"],
    "additionalProperties": False,
}
"""The few of kustomize's keys that are used here; it publishes no schema."""


def faults(manifest):
    """What is wrong with a document of any kind, empty where nothing is.

    Skips the test where it is KubeRay's and the definitions are not beside the checkout.
    """
    kind = manifest["kind"]
    if kind in CLUSTERS:
        metadata = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": manifest.get("metadata")}
        found = _messages(_definition(kind), manifest)
        return found or _kubernetes_faults(metadata)
    if kind in ("Kustomization", "Component"):
        return _messages(jsonschema.Draft202012Validator(_KUSTOMIZATION), manifest)
    return _kubernetes_faults(manifest)


def _messages(validator, manifest):
    found = sorted(validator.iter_errors(manifest), key=lambda each: list(map(str, each.path)))
    return [f"{'.'.join(map(str, each.path))}: {each.message}" for each in found]


def _kubernetes_faults(manifest):
    if "apiVersion" not in manifest:
        return ["no apiVersion"]
    _read_schemas_once()
    try:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    except kubernetes_validate.SchemaNotFoundError as error:
        return [error.message]
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


@cache
def _read_schemas_once():
    """The package parses all its definitions again for each document."""
    utils.schema_contents = cache(utils.schema_contents)


@cache
def _definition(kind):
    """What KubeRay's definition of a kind says of its first version, which is stored."""
    path = _DEFINITIONS / f"ray.io_{kind.lower()}s.yaml"
    if not path.exists():
        pytest.skip("../shared/schemas is not beside this checkout")
    (version,) = [each for each in document(path)["spec"]["versions"] if each["storage"]]
    assert version["name"] == "v1"
    schema = _strict(version["schema"]["openAPIV3Schema"])
    # The definition knows it by where it stands.
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    schema["properties"]["apiVersion"] = {"const": "ray.io/v1"}
    return jsonschema.Draft202012Validator(schema)


def _strict(schema):
    """The same schema, with no keys but those it lists."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(each) for key, each in schema.items()}
    listed = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if listed and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    return strict
