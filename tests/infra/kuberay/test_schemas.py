"""Every file of infra/kuberay is what Kubernetes, KubeRay and kustomize read, to the last key."""

import copy

import pytest
import yaml
from manifest_schemas import faults
from manifests import FILES, FOLDER, manifests
from yaml_files import documents, misspelt, places, read_documents

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
