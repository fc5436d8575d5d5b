"""Whatever a manifest names is there: accounts, claims, config maps, secrets, services, images."""

import re
import tomllib

from manifests import (
    FOLDER,
    NAMESPACE,
    SECRETS,
    chosen,
    environment_of,
    keys_told,
    manifests,
    of_kind,
    pods,
)
from yaml_files import INFRA, documents

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
            mount["name"] for each in pod.containers for mount in each.get("volumeMounts", [])
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
