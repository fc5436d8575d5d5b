"""The walk on Kubernetes in infra/README.md: what it names is there, in an order that works.

What else a README must hold is in tests/docs/test_readme.py, for this one too; the node pools are
in kuberay/test_nodes.py.
"""

import re

from manifests import NAMESPACE, SECRETS, keys_told, manifests, of_kind
from yaml_files import INFRA, document

README = (INFRA / "README.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
LINES = [line for kind, fence in FENCES if kind == "" for line in fence.splitlines()]
COMMANDS = [line.partition("#")[0].split() for line in LINES if line.startswith("kubectl ")]
BASE = "infra/kuberay/base"


def folders(verb):
    """The folders that are applied or deleted, in the README's order."""
    return [words[3] for words in COMMANDS if words[1:3] == [verb, "-k"]]


def position(*words):
    """Where the first command stands that begins with these words."""
    found = [number for number, line in enumerate(LINES) if line.split()[: len(words)] == [*words]]
    assert found, " ".join(words)
    return found[0]


def needed(folder):
    """The secrets that pods of a folder name."""
    name = f"{folder.removeprefix('infra/kuberay/')}/"
    texts = [str(some) for file, some in manifests().items() if file.startswith(name)]
    return {secret for secret in SECRETS if any(repr(secret) in text for text in texts)}


def test_every_folder_is_applied_and_nothing_else():
    there = {
        path.parent.relative_to(INFRA.parent).as_posix()
        for path in (INFRA / "kuberay").glob("*/kustomization.yaml")
    }
    applied = folders("apply")
    assert sorted(applied) == sorted(there - {"infra/kuberay/images"})
    assert applied[0] == BASE


def test_what_is_applied_is_deleted_in_reverse_and_the_base_last():
    deleted = folders("delete")
    assert deleted == folders("apply")[::-1]
    assert deleted[-1] == BASE
    # Ray's pods are gone before their network and their claims, and these before their cluster.
    last = position("kubectl", "delete", "-k", BASE)
    waited = position("kubectl", "-n", NAMESPACE, "wait", "--for=delete", "pod")
    assert position("kubectl", "delete", "-k", deleted[-2]) < waited < last
    volumes = position("kubectl", "get", "persistentvolumes")
    assert last < volumes < position("gcloud", "container", "clusters", "delete")


def test_secrets_are_made_in_their_namespace_before_what_needs_them():
    namespace = position("kubectl", "apply", "-f", f"{BASE}/namespace.yaml")
    made = {
        secret: position("kubectl", "-n", NAMESPACE, "create", "secret", "generic", secret)
        for secret in SECRETS
    }
    assert namespace < min(made.values())
    for folder in folders("apply"):
        for secret in needed(folder):
            assert made[secret] < position("kubectl", "apply", "-k", folder), (folder, secret)
    assert {secret for each in folders("apply") for secret in needed(each)} == set(SECRETS)
    told = [row.split("`")[1] for row in README.splitlines() if row.startswith("| `bertline-")]
    assert sorted(told) == sorted(SECRETS)


def test_secrets_hold_what_the_pods_read():
    for secret, keys in SECRETS.items():
        line = LINES[position("kubectl", "-n", NAMESPACE, "create", "secret", "generic", secret)]
        assert keys_told(line) == keys
    made = position("python", "-m", "serving.new_key", "TEAM", "--file", "keys.json")
    create = ("kubectl", "-n", NAMESPACE, "create", "secret", "generic", "bertline-api-keys")
    assert made < position(*create)


def test_models_are_there_before_they_are_served():
    (service,) = of_kind("RayService").values()
    assert "models:/people@champion" in service["spec"]["serveConfigV2"]
    assert "model: [/models/encoder]" in service["spec"]["serveConfigV2"]
    serve = position("kubectl", "apply", "-k", "infra/kuberay/serve")
    trained = position("python", "workflows/finetune.py")
    promoted = position("python", "workflows/promote.py", "--name", "people")
    copied = position("aws", "s3", "cp", "--recursive", "s3://BUCKET/runs/base-fast/model")
    assert position("kubectl", "apply", "-k", "infra/kuberay/pretrain-gpu") < trained < promoted
    assert max(promoted, copied) < serve
    assert "--tracking.register_as people" in LINES[trained]
    assert LINES[copied].endswith(" s3://BUCKET/models/encoder")
    entrypoint = of_kind("RayJob")["pretrain-gpu"]["spec"]["entrypoint"]
    assert "--name base-fast " in entrypoint and "--storage $BERTLINE_STORAGE" in entrypoint


def test_mlflow_is_called_by_a_name_that_it_takes():
    forwarded = position("kubectl", "-n", NAMESPACE, "port-forward", "service/mlflow", "5000:5000")
    address = position("export", "MLFLOW_TRACKING_URI=http://localhost:5000")
    assert forwarded < address < position("python", "workflows/finetune.py")
    (container,) = of_kind("Deployment")["mlflow"]["spec"]["template"]["spec"]["containers"]
    (hosts,) = [word for word in container["args"] if word.startswith("--allowed-hosts=")]
    assert {"localhost:*", "127.0.0.1:*"} <= set(hosts.partition("=")[2].split(","))


def objects():
    """What there is by a name to ask for, as kubectl writes it: of files, and what KubeRay adds."""
    for some in manifests().values():
        for each in some:
            kind, name = each["kind"].lower(), each["metadata"]["name"]
            yield f"{kind}/{name}"
            if kind == "rayjob":
                yield f"job/{name}"  # which submits it
            if kind == "rayservice":
                yield f"service/{name}-serve-svc"
            if kind == "raycluster":
                yield f"service/{name}-head-svc"


def test_what_is_asked_for_by_name_is_made_by_a_file():
    made = set(objects())
    asked = [word for words in COMMANDS for word in words if re.fullmatch("[a-z]+/[a-z-]+", word)]
    assert len(asked) >= 9
    assert not [each for each in asked if each not in made]
    for words in COMMANDS:
        if made & set(words):
            assert words[1:3] == ["-n", NAMESPACE]


def test_the_operator_is_that_of_the_chart_which_the_network_lets_in():
    install = LINES[position("helm", "install", "kuberay-operator")].split()
    # The chart labels its pod by its own name.
    chart = install[3].removeprefix("kuberay/")
    version = install[install.index("--version") + 1]
    assert f"{chart}-{version}" in README
    assert set(re.findall(r"KubeRay (\d+\.\d+)", README)) == {version[:3]}
    assert f"--version {version} " in LINES[position("helm", "upgrade", "kuberay-operator")]
    assert f"?ref=v{version}" in LINES[position("kubectl", "replace", "-k")]
    admitted = [
        peer
        for name in ("training", "serving")
        for rule in of_kind("NetworkPolicy")[name]["spec"]["ingress"]
        for peer in rule["from"]
        if "kuberay" in str(peer)
    ]
    label = {"matchLabels": {"app.kubernetes.io/name": chart}}
    assert admitted == [{"namespaceSelector": {}, "podSelector": label}] * 2
    assert f"-l app.kubernetes.io/name={chart}" in README


def test_the_share_is_the_one_that_ray_s_machines_mount():
    create = LINES[position("gcloud", "filestore", "instances", "create")].split()
    cluster = document(INFRA / "ray" / "gpu.yaml")
    zone = create[create.index("--zone") + 1]
    assert zone == cluster["provider"]["availability_zone"]
    share = re.search(r"name=(\w+),", create[create.index("--file-share") + 1])[1]
    assert f":/{share} /mnt/bertline)" in cluster["setup_commands"][0]
    delete = LINES[position("gcloud", "filestore", "instances", "delete")].split()
    assert delete[4:] == [create[4], "--zone", zone]
    assert position("ray", "down") < position("gcloud", "filestore", "instances", "delete")


def test_each_walk_says_what_it_costs_and_how_it_ends():
    walks = dict(re.findall(r"^## (On .*)\n((?:(?!## ).*\n)+)", README, re.MULTILINE))
    assert set(walks) >= {"On a laptop", "On one GPU server", "On Kubernetes"}
    ends = {"On a laptop": "local.sh stop", "On one GPU server": "ray down"}
    ends |= {"On Kubernetes": "gcloud container clusters delete"}
    for name, end in ends.items():
        assert re.search("dollars|[Nn]o cost", walks[name]), name
        assert end in walks[name]


def test_each_folder_of_infra_is_told_of():
    names = [path.name for path in INFRA.iterdir() if path.is_dir()]
    assert "ray" in names
    assert not [name for name in names if f"]({name}/" not in README]
