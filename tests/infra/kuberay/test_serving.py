"""The RayService is infra/serve.yaml on a cluster that has room for it."""

import subprocess
import sys

from manifests import amount, environment_of, groups_of, of_kind
from ray.serve.schema import ServeDeploySchema
from yaml_files import INFRA, document, environment, read_documents

from serving.deployment import INGRESS_VARIABLES, DeploymentArguments


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
