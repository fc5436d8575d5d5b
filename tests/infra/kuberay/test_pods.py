"""Every container of infra/kuberay: what it may use, what it may do, how it is known to be well."""

from pathlib import Path

import pytest
from manifests import Pods, amount, groups_of, of_kind, pods


def faults_of_resources(resources):
    """What is wrong with requests and limits."""
    found = [
        f"no {side} of {kind}"
        for side in ("requests", "limits")
        for kind in ("cpu", "memory")
        if kind not in resources.get(side, {})
    ]
    if found:
        return found
    requests, limits = resources["requests"], resources["limits"]
    found += [
        f"more {kind} requested than allowed"
        for kind, wanted in requests.items()
        if amount(wanted) > amount(limits.get(kind, 0))
    ]
    # Devices cannot be had twice.
    found += [
        f"{kind} limited alone" for kind in limits if "/" in kind and requests.get(kind) is None
    ]
    return found


def faults_of(pod):
    """What a container or its pod lacks."""
    found = []
    host = {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & set(pod.spec)
    found += [f"shares the node's {each}" for each in host]
    found += [
        f"a folder of the node, {each['name']}"
        for each in pod.spec.get("volumes", [])
        if "hostPath" in each
    ]
    # Kubernetes' own POSTGRES_PORT and MLFLOW_PORT are no settings of ours.
    if pod.spec.get("enableServiceLinks") is not False:
        found.append("has variables of all services")
    user = pod.spec.get("securityContext", {})
    if not user.get("runAsNonRoot") or not user.get("runAsUser"):
        found.append("may be root")
    if user.get("seccompProfile") != {"type": "RuntimeDefault"}:
        found.append("any system call")
    for container in pod.containers:
        held = container.get("securityContext", {})
        if held.get("allowPrivilegeEscalation") is not False:
            found.append("may become more")
        if held.get("capabilities") != {"drop": ["ALL"]} or held.get("privileged"):
            found.append("has capabilities")
        found += faults_of_resources(container.get("resources", {}))
    return found


@pytest.mark.parametrize("pod", pods(), ids=lambda pod: pod.name)
def test_a_container_has_its_share_and_no_rights(pod):
    assert faults_of(pod) == []


def test_what_is_missing_is_found():
    good = next(each for each in pods() if each.name == "mlflow")
    assert faults_of(good) == []

    def with_container(**changed):
        (container,) = good.spec["containers"]
        return Pods(good.name, good.labels, good.spec | {"containers": [container | changed]})

    assert "no limits of memory" in faults_of(with_container(resources={"requests": {"cpu": 1}}))
    too_much = {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"cpu": "1500m"}}
    too_much["limits"]["memory"] = "4Gi"
    assert faults_of(with_container(resources=too_much)) == ["more cpu requested than allowed"]
    assert "may become more" in faults_of(with_container(securityContext={"privileged": True}))
    assert faults_of(Pods("x", {}, good.spec | {"hostNetwork": True})) != []
    assert "may be root" in faults_of(Pods("x", {}, good.spec | {"securityContext": {}}))


def test_the_autoscaler_is_held_as_the_others_are():
    growing = 0
    for manifest in of_kind("RayCluster", "RayJob", "RayService").values():
        spec = manifest["spec"]
        spec = spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec
        if spec.get("enableInTreeAutoscaling"):
            options = spec["autoscalerOptions"]
            container = {key: options[key] for key in ("resources", "securityContext")}
            user = {"runAsNonRoot": True, "runAsUser": 1000}
            user["seccompProfile"] = {"type": "RuntimeDefault"}
            pod = {"securityContext": user, "containers": [container], "enableServiceLinks": False}
            assert faults_of(Pods("x", {}, pod)) == []
            assert options["version"] == "v2"
            growing += 1
    assert growing == 3


def ports_of(container):
    return {each["name"]: each["containerPort"] for each in container.get("ports", [])}


@pytest.mark.parametrize("pod", pods(), ids=lambda pod: pod.name)
def test_what_stays_is_asked_how_it_is(pod):
    (container,) = pod.spec["containers"]
    if pod.name == "prepare" or pod.name.endswith("/submitter"):
        assert pod.spec["restartPolicy"] == "Never"
        return
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe].get("httpGet")
        if asked is None:
            assert container[probe]["exec"]["command"][0] == "pg_isready"
        elif isinstance(asked["port"], str):
            assert asked["port"] in ports_of(container)
        else:
            assert asked == {"path": "/api/healthz", "port": 52365}
    # Half a minute of silence is no reason to kill.
    alive = container["livenessProbe"]
    assert alive["periodSeconds"] * alive["failureThreshold"] >= 60


def test_ray_knows_the_path_that_is_asked():
    from ray._private import ray_constants
    from ray.dashboard.modules.reporter import healthz_agent

    assert ray_constants.DEFAULT_DASHBOARD_AGENT_LISTEN_PORT == 52365
    source = Path(healthz_agent.__file__).read_text(encoding="utf-8")
    assert '@routes.get("/api/healthz")' in source


def test_only_heads_that_grow_may_speak_to_kubernetes():
    accounts = of_kind("ServiceAccount")
    assert all(each["automountServiceAccountToken"] is False for each in accounts.values())
    with_token = {each.name for each in pods() if each.spec["automountServiceAccountToken"]}
    assert with_token == {"training/head", "pretrain-gpu/head", "serving/head"}
    for pod in pods():
        wanted = "ray-head" if pod.name in with_token else "bertline"
        assert pod.spec["serviceAccountName"] == wanted


def test_workers_may_lie_on_spot_machines_and_heads_may_not():
    for name in ("training", "pretrain-gpu", "pretrain-tpu"):
        manifest = of_kind("RayCluster", "RayJob")[name]
        for group, content in groups_of(manifest).items():
            spec = content["template"]["spec"]
            tolerated = {each["key"] for each in spec.get("tolerations", [])}
            if group == "head":
                terms = spec["affinity"]["nodeAffinity"][
                    "requiredDuringSchedulingIgnoredDuringExecution"
                ]["nodeSelectorTerms"]
                avoided = {"key": "cloud.google.com/gke-spot", "operator": "DoesNotExist"}
                assert [each["matchExpressions"] for each in terms] == [[avoided]]
                assert not tolerated
            else:
                devices = {"nvidia.com/gpu", "google.com/tpu"}
                assert "cloud.google.com/gke-spot" in tolerated
                assert tolerated & devices
                # A checkpoint is written in between.
                assert spec["terminationGracePeriodSeconds"] >= 120
