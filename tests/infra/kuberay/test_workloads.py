"""Training jobs and the serving application on Kubernetes."""

import copy
import shlex
import subprocess
import sys
from string import Template

import pytest
from manifests import amount, cluster_of, environment_of, groups_of, of_kind, pods
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.scripts import scripts
from ray.serve.schema import ServeDeploySchema
from yaml_files import INFRA, document, environment, read_documents

from bert_core.errors import UserError
from serving.deployment import INGRESS_VARIABLES, DeploymentArguments
from workflows.prepare import PrepareSettings
from workflows.pretraining.settings import PretrainSettings
from workflows.settings import parse_command_line

JOBS = {"pretrain-gpu": "gpu", "pretrain-tpu": "v6e-4x4"}


def settings_of(entrypoint, variables):
    """What pretrain.py reads in a job's entrypoint."""
    command = shlex.split(Template(entrypoint).substitute(variables))
    assert command[:2] == ["python", "workflows/pretrain.py"]
    assert (INFRA.parent / command[1]).is_file()
    return parse_command_line(PretrainSettings, command[2:])


def job_settings(name):
    job = of_kind("RayJob")[name]
    (submitter,) = job["spec"]["submitterPodTemplate"]["spec"]["containers"]
    # The submitter's shell replaces variables.
    return settings_of(job["spec"]["entrypoint"], environment_of(submitter))


@pytest.mark.parametrize("name", JOBS)
def test_the_entrypoint_is_a_command_of_ours(name):
    settings = job_settings(name)
    assert settings.storage.startswith("s3://")
    # The same name goes on, whatever cluster it is on.
    assert settings.name
    head = groups_of(of_kind("RayJob")[name])["head"]["template"]["spec"]
    mounts = head["containers"][0]["volumeMounts"]
    assert any(settings.shards.is_relative_to(mount["mountPath"]) for mount in mounts)


def test_where_gpus_are_small_rows_are_few():
    (gpu,) = cluster_of(of_kind("RayJob")["pretrain-gpu"])["workerGroupSpecs"]
    assert "nvidia.com/gpu" in str(gpu)
    assert job_settings("pretrain-gpu").batch.micro_batch_size == 64
    text = (INFRA / "README.md").read_text(encoding="utf-8")
    (submitted,) = [line for line in text.splitlines() if "base-fast" in line and "/mnt/" in line]
    assert "--batch.micro_batch_size 64" in submitted


def test_a_misspelt_option_of_the_entrypoint_is_found():
    job = of_kind("RayJob")["pretrain-gpu"]["spec"]["entrypoint"]
    with pytest.raises(UserError, match="storages"):
        settings_of(job.replace("--storage ", "--storages "), {"BERTLINE_STORAGE": "s3://b"})


def test_shards_are_prepared_where_they_are_read():
    (prepare,) = [pod for pod in pods() if pod.name == "prepare"]
    (container,) = prepare.spec["containers"]
    assert container["command"] == ["python", "workflows/prepare.py"]
    settings = parse_command_line(PrepareSettings, container["args"])
    for name in JOBS:
        assert job_settings(name).shards == settings.output


def test_a_job_that_ends_leaves_a_checkpoint_and_no_cluster():
    node = environment(INFRA / "ray" / "node.env")
    assert node.items() <= of_kind("ConfigMap")["bertline"]["data"].items()
    for job in of_kind("RayJob").values():
        spec = job["spec"]
        (runtime,) = read_documents(spec["runtimeEnvYAML"])
        wait = "RAY_JOB_STOP_WAIT_TIME_S"
        assert runtime == {"env_vars": {wait: node[wait]}}
        head = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
        assert head["terminationGracePeriodSeconds"] > int(node[wait])
        hook = head["containers"][0]["lifecycle"]["preStop"]
        assert hook["exec"]["command"] == ["python", "/etc/bertline/stop.py"]
        assert spec["shutdownAfterJobFinishes"] is True
        # KubeRay refuses a retry in any other way of choosing a cluster.
        assert spec["backoffLimit"] > 0 and "clusterSelector" not in spec
        assert spec["activeDeadlineSeconds"] >= 86400


def anybodys(manifest):
    """A cluster's spec without the labels that say whose it is."""
    spec = copy.deepcopy(cluster_of(manifest))
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        whose = group["template"]["metadata"]["labels"].pop("app.kubernetes.io/instance")
        assert whose == manifest["metadata"]["name"]
    return spec


def test_the_cluster_that_stays_and_the_job_s_own_are_alike():
    own = of_kind("RayJob")["pretrain-gpu"]
    assert anybodys(of_kind("RayCluster")["training"]) == anybodys(own)


def every_cluster():
    return of_kind("RayCluster", "RayJob", "RayService")


@pytest.mark.parametrize("name", every_cluster())
def test_ray_start_knows_what_it_is_told(name):
    manifest = every_cluster()[name]
    spec = cluster_of(manifest)
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["rayVersion"] == scripts.ray.__version__
    for group, content in groups_of(manifest).items():
        words = [
            f"--{key}" if value == "true" else f"--{key}={value}"
            for key, value in content["rayStartParams"].items()
        ]
        start = ["--head", *words] if group == "head" else ["--address=h:6379", *words]
        options = scripts.start.make_context("start", start).params
        assert options["disable_usage_stats"] is True
        assert options["num_cpus"] == (0 if group == "head" else None)


def node_types(name):
    """What Ray's own autoscaler reads in a cluster's description."""
    manifest = every_cluster()[name]
    described = {"metadata": manifest["metadata"], "spec": cluster_of(manifest)}
    return _derive_autoscaling_config_from_ray_cr(described)["available_node_types"]


@pytest.mark.parametrize("name", ["training", "pretrain-gpu"])
def test_machines_with_gpus_come_with_the_demand(name):
    types = node_types(name)
    assert types["headgroup"]["resources"]["CPU"] == 0
    group, settings = types["gpu"], job_settings("pretrain-gpu")
    assert (group["min_workers"], group["resources"]["GPU"]) == (0, 4)
    _, most = settings.cluster.num_workers
    assert group["max_workers"] * group["resources"]["GPU"] == most
    assert settings.cluster.cpus_per_worker * 4 <= group["resources"]["CPU"]


def test_the_slice_is_that_of_the_profile():
    wanted = job_settings("pretrain-tpu").cluster.tpu_slice
    group = groups_of(of_kind("RayJob")["pretrain-tpu"])["v6e-4x4"]
    spec = group["template"]["spec"]
    chips = int(amount(spec["containers"][0]["resources"]["limits"]["google.com/tpu"]))
    assert (group["numOfHosts"], chips) == (wanted.num_hosts, wanted.chips_per_host)
    assert group["numOfHosts"] * chips == wanted.num_chips == 16
    assert spec["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": f"tpu-{wanted.generation}-slice",
        "cloud.google.com/gke-tpu-topology": wanted.topology,
    }
    resources = node_types("pretrain-tpu")["v6e-4x4"]["resources"]
    assert resources["TPU"] == 4
    # Ray Train reserves a slice by this.
    assert resources["TPU-v6e-16-head"] == 1


def service():
    (found,) = of_kind("RayService").values()
    return found


def config():
    (found,) = read_documents(service()["spec"]["serveConfigV2"])
    return found


def server():
    (container,) = groups_of(service())["cpu"]["template"]["spec"]["containers"]
    return container


def test_what_is_served_is_what_serve_yaml_says():
    assert config() == document(INFRA / "serve.yaml")
    ServeDeploySchema.model_validate(config())


def test_every_node_has_the_environment_of_ray_serve_env():
    wanted = environment(INFRA / "ray-serve.env")
    assert INGRESS_VARIABLES.items() <= wanted.items()
    assert of_kind("ConfigMap")["ray-serve"]["data"] == wanted
    for group in groups_of(service()).values():
        assert wanted.items() <= environment_of(group["template"]["spec"]["containers"][0]).items()


def test_the_cluster_has_room_for_all_replicas_and_an_update():
    group = groups_of(service())["cpu"]
    processors = amount(server()["resources"]["limits"]["cpu"])
    least = most = 0
    for application in config()["applications"]:
        for deployment in application["deployments"]:
            each = deployment["ray_actor_options"]["num_cpus"]
            assert processors % each == 0
            replicas = deployment["autoscaling_config"]
            least += each * replicas["min_replicas"]
            # An update of all begins with one of each that is new.
            most += each * (replicas["max_replicas"] + 1)
    assert least <= group["minReplicas"] * processors
    assert most <= group["maxReplicas"] * processors
    assert group["minReplicas"] >= 2


def test_files_and_addresses_of_the_models_are_there():
    spec = groups_of(service())["cpu"]["template"]["spec"]
    mounts = {each["mountPath"]: each["name"] for each in server()["volumeMounts"]}
    (fetching,) = spec["initContainers"]
    for application in config()["applications"]:
        arguments = DeploymentArguments.model_validate(application["args"])
        assert mounts[str(arguments.api_key_file)] == "keys"
        if arguments.tracking_uri is not None:
            assert arguments.tracking_uri == environment_of(server())["MLFLOW_TRACKING_URI"]
        for model in arguments.model:
            if model.startswith("/"):
                assert f'"{model}"' in fetching["command"][2]
                assert any(model.startswith(f"{folder}/") for folder in mounts)
    assert [each["mountPath"] for each in fetching["volumeMounts"]] == ["/models"]


def test_the_encoder_is_fetched(tmp_path):
    (fetching,) = groups_of(service())["cpu"]["template"]["spec"]["initContainers"]
    there = tmp_path / "bucket" / "models" / "encoder"
    (there / "onnx").mkdir(parents=True)
    (there / "config.json").write_text("{}")
    (there / "onnx" / "x").write_text("y")
    (tmp_path / "models").mkdir()
    program, *words, text = fetching["command"]
    assert (program, words) == ("python", ["-c"])
    subprocess.run(
        [sys.executable, "-c", text.replace('(there, "', f'(there, "{tmp_path}')],
        env={"BERTLINE_STORAGE": (tmp_path / "bucket").as_uri()},
        check=True,
    )
    assert (tmp_path / "models" / "encoder" / "onnx" / "x").read_text() == "y"


def test_requests_come_to_nodes_that_can_answer():
    port = config()["http_options"]["port"]
    assert {"name": "serve", "containerPort": port} in server()["ports"]
    assert server()["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": "serve"}
    assert service()["spec"]["excludeHeadPodFromServeSvc"] is True


def test_what_was_asked_is_answered_before_a_pod_or_a_cluster_goes():
    slowest = max(
        deployment["graceful_shutdown_timeout_s"]
        for application in config()["applications"]
        for deployment in application["deployments"]
    )
    spec = groups_of(service())["cpu"]["template"]["spec"]
    notice = int(environment_of(server())["NOTICE_SECONDS"])
    assert slowest <= notice < spec["terminationGracePeriodSeconds"]
    assert service()["spec"]["rayClusterDeletionDelaySeconds"] >= slowest
    assert service()["spec"]["upgradeStrategy"] == {"type": "NewCluster"}
