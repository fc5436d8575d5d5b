"""The application under Ray Serve, as `serve run` starts it, behind HAProxy."""

from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema
from ray_serving import REPOSITORY, serving_on_ray
from running import assert_alike

from bert_core.errors import UserError
from serving.deployment import INGRESS_VARIABLES, DeploymentArguments, Server, build
from serving.limits import Limits
from serving.rollout.aliases import VariantSource


def test_everybody_is_let_in_only_if_that_is_said(small_models):
    folder = str(small_models["entities"])
    with pytest.raises(UserError, match="no keys are asked for"):
        build(DeploymentArguments(model=folder))
    assert build(DeploymentArguments(model=folder, insecure=True))
    with pytest.raises(UserError, match="whole paths"):
        build(DeploymentArguments(model="here", insecure=True))
    registered = {"model": "models:/people@champion", "insecure": True}
    assert build(DeploymentArguments(**registered))
    with pytest.raises(UserError, match="whole paths"):
        build(DeploymentArguments(**registered, cache=Path("models")))
    with pytest.raises(UserError, match="write models:/name@alias"):
        build(DeploymentArguments(model="models:/people", insecure=True))


def test_several_models_are_divided_by_commas():
    assert DeploymentArguments(model="a=/b,/c").model == ("a=/b", "/c")
    assert DeploymentArguments(model=["a=/b", "/c"]).model == ("a=/b", "/c")
    given = DeploymentArguments(model="a=/b,/c", canary="a=/d,0.1,c=/e,1", shadow=["a=/f,.5"])
    assert given.canary == ("a=/d,0.1", "c=/e,1") and given.shadow == ("a=/f,.5",)
    assert given.variants["canary", "c"] == VariantSource(Path("/e"), 1.0)
    with pytest.raises(UserError, match="write NAME=MODEL,SHARE"):
        _ = DeploymentArguments(model="a=/b", canary="a=/d").variants
    with pytest.raises(UserError, match="whole paths"):
        build(DeploymentArguments(model="a=/b", shadow="a=d,1", insecure=True))


def test_the_files_beside_it_are_of_this_deployment():
    config = yaml.safe_load((REPOSITORY / "infra" / "serve.yaml").read_text())
    ServeDeploySchema.model_validate(config)
    assert len({each["route_prefix"] for each in config["applications"]}) == 2
    for application in config["applications"]:
        assert application["import_path"] == "serving.deployment:build"
        assert build(DeploymentArguments.model_validate(application["args"]))
        (deployment,) = application["deployments"]
        assert deployment["name"] == Server.name
        scaling = deployment["autoscaling_config"]
        assert scaling["target_ongoing_requests"] < deployment["max_ongoing_requests"]
        # One that goes has 30 s in which it is reachable, then its requests have theirs.
        limits = Limits.model_validate(application["args"].get("limits", {}))
        assert deployment["graceful_shutdown_timeout_s"] > 30 + limits.deadline_seconds
    lines = (REPOSITORY / "infra" / "ray-serve.env").read_text().splitlines()
    variables = dict(line.split("=") for line in lines if line and not line.startswith("#"))
    assert INGRESS_VARIABLES.items() <= variables.items()


@pytest.mark.slow
def test_it_answers_as_under_uvicorn(
    server, small_models, registry, subprocess_environment, tmp_path
):
    models = small_models | {"entities": "models:/people@champion"}
    arguments = {
        "model": [f"{name}={model}" for name, model in models.items()],
        "tracking_uri": registry.uri,
        "cache": str(tmp_path / "models"),
        "cors_origins": "https://a.example",
        "allowed_hosts": "b.example,c.example",
        "insecure": True,
    }
    with serving_on_ray(arguments, subprocess_environment, tmp_path) as serving:
        for route, body in (
            ("/v1/ner", {"inputs": ["the cat sat", ""]}),
            ("/v1/classify", {"model": "sentiment", "inputs": "a cat"}),
            ("/embed", {"inputs": "a cat"}),
            ("/v1/ner", {"inputs": 3}),
            ("/v1/nothing", {}),
        ):
            status, content, headers = serving.ask(route, body)
            wanted_status, wanted = server.ask(route, body)
            assert status == wanted_status
            if status == 200 and route == "/v1/ner":  # there it is a folder
                assert content.pop("version") == "1" != wanted.pop("version")
            assert_alike(content, wanted)  # a replica has threads of its own number
            assert headers["X-Request-Id"]
        for host, wanted_status in (("c.example", 200), ("d.example", 421)):
            assert serving.ask("/info", headers={"Host": host})[0] == wanted_status
        _, info = serving.ask("/info")[:2]
        assert info["models"]["entities"]["registered"]["version"] == 1
        below = serving.process.children(recursive=True)
        assert any(each.name() == "haproxy" for each in below)
