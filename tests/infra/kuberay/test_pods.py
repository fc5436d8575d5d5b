"""Pods: what they may do, what they ask for, and whom they may talk to."""

from pathlib import Path

import pytest
from manifests import Pods, amount, chosen, groups_of, of_kind, pods


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
    good = next(pod for pod in pods() if pod.name == "mlflow")
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
    assert all(account["automountServiceAccountToken"] is False for account in accounts.values())
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
                assert [term["matchExpressions"] for term in terms] == [[avoided]]
                assert not tolerated
            else:
                devices = {"nvidia.com/gpu", "google.com/tpu"}
                assert "cloud.google.com/gke-spot" in tolerated
                assert tolerated & devices
                # A checkpoint is written in between.
                assert spec["terminationGracePeriodSeconds"] >= 120


RAY = {"6379", "10002", "19999", "52365"}


def by_name(name):
    (pod,) = [each for each in pods() if each.name == name]
    return pod


def policies(direction):
    kind = direction.capitalize()
    return [
        each["spec"]
        for each in of_kind("NetworkPolicy").values()
        if kind in each["spec"]["policyTypes"]
    ]


def allows(direction, pod, other, port):
    """Whether a policy lets this pod send to (or hear from) the other at a port.

    A rule for everybody has no list of peers, and is no rule about another pod of ours.
    """
    side = {"egress": "to", "ingress": "from"}[direction]
    for policy in policies(direction):
        if pod not in chosen(policy["podSelector"]):
            continue
        for rule in policy.get(direction, []):
            ports = [each["port"] for each in rule.get("ports", [])]
            open_port = not ports or int(port) in ports
            own = [each for each in rule.get(side, []) if set(each) == {"podSelector"}]
            if open_port and any(other in chosen(each["podSelector"]) for each in own):
                return True
    return False


def connected(source, target, port):
    source, target = by_name(source), by_name(target)
    return allows("egress", source, target, port) and allows("ingress", target, source, port)


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        ("mlflow", "postgres", 5432),
        ("pretrain-gpu/head", "mlflow", 5000),
        ("training/gpu", "mlflow", 5000),
        ("serving/cpu", "mlflow", 5000),
        ("pretrain-gpu/submitter", "pretrain-gpu/head", 8265),
        ("pretrain-tpu/submitter", "pretrain-tpu/head", 8265),
        *(("training/gpu", "training/head", port) for port in sorted(RAY)),
        *(("training/head", "training/gpu", port) for port in sorted(RAY)),
        ("pretrain-tpu/v6e-4x4", "pretrain-tpu/v6e-4x4", 40000),
        # HAProxy of one node gives requests to replicas of another.
        ("serving/cpu", "serving/cpu", 30000),
        ("serving/head", "serving/cpu", 30000),
    ],
)
def test_what_has_to_meet_can(source, target, port):
    assert connected(source, target, port)


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        ("serving/cpu", "postgres", 5432),
        ("training/gpu", "postgres", 5432),
        ("postgres", "mlflow", 5000),
        ("serving/cpu", "training/head", 8265),
        ("training/gpu", "serving/head", 6379),
        ("training/gpu", "serving/cpu", 8000),
        ("prepare", "mlflow", 5000),
        ("pretrain-gpu/submitter", "pretrain-gpu/head", 6379),
        ("mlflow", "training/head", 8265),
    ],
)
def test_what_has_no_business_there_cannot(source, target, port):
    assert not connected(source, target, port)


def test_nobody_may_do_anything_unless_it_is_said():
    policy = of_kind("NetworkPolicy")["nobody"]["spec"]
    assert policy == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert chosen(policy["podSelector"]) == pods()


def test_policies_mean_pods_that_there_are():
    for name, policy in of_kind("NetworkPolicy").items():
        spec = policy["spec"]
        assert chosen(spec["podSelector"]), name
        for direction, side in (("egress", "to"), ("ingress", "from")):
            assert (direction in spec) <= (direction.capitalize() in spec["policyTypes"]), name
            for rule in spec.get(direction, []):
                if side not in rule:
                    assert (name, direction) == ("training", "egress"), "that means everybody"
                    continue
                assert rule[side], "an empty list means everybody"
                for peer in rule[side]:
                    if set(peer) == {"podSelector"}:
                        assert chosen(peer["podSelector"]), name


def outside(direction, name):
    """Ports at which a pod may be reached from other namespaces, or reach the world."""
    side = {"egress": "to", "ingress": "from"}[direction]
    found = set()
    for policy in policies(direction):
        if by_name(name) in chosen(policy["podSelector"]):
            for rule in policy.get(direction, []):
                # Without a list it is everybody.
                if any(set(peer) != {"podSelector"} for peer in rule.get(side, [{}])):
                    found |= {each["port"] for each in rule["ports"]}
    return found


def test_names_are_asked_of_whoever_knows_them_on_gke():
    (rule,) = of_kind("NetworkPolicy")["names"]["spec"]["egress"]
    assert {each["port"] for each in rule["ports"]} == {53}
    pods_of_names, *addresses = rule["to"]
    (expression,) = pods_of_names["podSelector"]["matchExpressions"]
    # Its own cache on each node is a pod of another label, to Dataplane V2 no address.
    assert (expression["key"], expression["operator"]) == ("k8s-app", "In")
    assert set(expression["values"]) == {"kube-dns", "node-local-dns"}
    assert len(addresses) == 2


def test_a_tpu_s_node_is_reached_whatever_the_network_takes_a_node_for():
    rules = of_kind("NetworkPolicy")["training"]["spec"]["egress"]
    assert {"ports": [{"protocol": "TCP", "port": 8353}]} in rules
    (worker,) = by_name("pretrain-tpu/v6e-4x4").containers
    (address,) = [each["value"] for each in worker["env"] if "VBAR" in each["name"]]
    assert address.endswith(":8353")


def test_from_outside_come_requests_the_operator_and_prometheus_alone():
    assert outside("ingress", "serving/cpu") == {8000, 8080, 8265, 9101}
    assert outside("ingress", "training/head") == {8080, 8265}
    assert outside("ingress", "mlflow") == outside("ingress", "postgres") == set()
    assert outside("egress", "postgres") == {53}
    assert outside("egress", "mlflow") == outside("egress", "prepare") == {53, 443, 6443}
    assert outside("egress", "training/gpu") == {53, 443, 6443, 8353}


def test_budgets_keep_one_of_each_head_and_of_the_servers():
    kept = {}
    for name, budget in of_kind("PodDisruptionBudget").items():
        spec = budget["spec"]
        # Kubernetes takes nothing else of pods that no scalable owner has.
        assert set(spec) == {"minAvailable", "selector"} and spec["minAvailable"] == 1
        (pod,) = chosen(spec["selector"])
        kept[name] = pod.name
    heads = {each.name for each in pods() if each.labels.get("ray.io/node-type") == "head"}
    assert set(kept.values()) == heads | {"serving/cpu"}


def test_prometheus_is_told_where_metrics_are():
    for manifest in of_kind("RayCluster", "RayJob", "RayService").values():
        spec = manifest["spec"]
        spec = spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            said = group["template"]["metadata"]["annotations"]
            (container,) = group["template"]["spec"]["containers"]
            ports = {each["name"]: each["containerPort"] for each in container["ports"]}
            assert said["prometheus.io/port"] == str(ports["metrics"]) == "8080"
            assert said["prometheus.io/scrape"] == "true"
