"""Ray on machines of one's own: scripts and ports."""

import os
import re
import shlex
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray
import yaml
from mlflow import MlflowClient
from ray.serve._private import constants

from bert_core.training.checkpoint_folder import checkpoint_step, committed_checkpoints
from workflows.runs.tracker import JOURNAL_NAME

REPOSITORY = Path(__file__).parents[3]
SCRIPT = REPOSITORY / "infra" / "ray" / "local.sh"


@pytest.fixture
def local(subprocess_environment, tmp_path):
    """Runs local.sh for a home folder of its own; the token is its own too, not the tests'."""

    def run(*arguments, timeout=60):
        return subprocess.run(
            [SCRIPT, *arguments],
            cwd=tmp_path,
            env=subprocess_environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture
def state(tmp_path):
    """Where local.sh keeps what it has started."""
    return tmp_path / "home" / ".bertline" / "cluster"


def has_steps(journal):
    return journal.exists() and journal.stat().st_size > 10_000


def processes_of(state):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("BERTLINE_CLUSTER") == str(state):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            pass
    return found


def listening(state):
    """Where the cluster's processes listen: address and the program's name in Ray."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("BERTLINE_CLUSTER") != str(state):
                continue
            name = "dashboard" if any("dashboard.py" in w for w in process.cmdline()) else "other"
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    yield connection.laddr.ip, name
        except psutil.Error:
            pass


def nodes_seen(state, token):
    """What a client with a token is told: the number of nodes, or why not."""
    address = (state / "address").read_text().strip()
    code = f"import ray; ray.init({address!r}, log_to_driver=False); print(len(ray.nodes()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"RAY_AUTH_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout if done.returncode == 0 else done.stderr


def test_the_scripts_have_no_fault_that_shellcheck_knows():
    scripts = sorted(SCRIPT.parent.glob("*.sh"))
    assert len(scripts) == 2
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)
    assert all("\nset -euo pipefail\n" in script.read_text() for script in scripts)


def test_help_names_all_it_takes(local):
    done = local("--help")
    assert done.returncode == 0
    for word in ("WORKERS", "COMMAND", "stop", "127.0.0.1", "Ctrl-C"):
        assert word in done.stdout


@pytest.mark.parametrize(
    "arguments", [("two",), ("0",), ("-1",), ("2", "python"), ("--",), ("stop", "now"), ("--stop",)]
)
def test_what_it_does_not_take_is_one_line(local, arguments, state):
    done = local(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not state.exists()


def test_a_stop_of_nothing_says_so_and_the_token_is_made_once_and_for_the_user_alone(local, state):
    first = local("stop")
    assert first.returncode == 0
    assert "nothing to stop" in first.stdout
    token = (state / "token").read_text()
    assert len(token) == 64
    assert token not in first.stdout + first.stderr
    (state / "token").chmod(0o644)
    assert local("stop").returncode == 0
    assert (state / "token").read_text() == token
    assert stat.S_IMODE((state / "token").stat().st_mode) == 0o600


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_from_nothing_to_a_finished_quickstart_and_back(local, state, ray_cluster, tmp_path):
    try:
        done = local(timeout=1000)
        assert done.returncode == 0, done.stdout + done.stderr
        token = (state / "token").read_text()
        assert token not in done.stdout + done.stderr
        assert "400 of its 2,600 steps" in local("--help").stdout
        assert "finished     400 steps" in done.stdout
        assert "registered   models:/bert/1" in done.stdout
        assert "succeeded" in done.stdout
        (run,) = (tmp_path / "home" / ".bertline" / "runs").glob("quickstart-????????")
        assert (run / "model" / "model.safetensors").exists()
        store = MlflowClient(f"sqlite:///{tmp_path}/home/.bertline/mlflow/mlflow.db")
        (experiment,) = store.search_experiments(filter_string="name = 'pretraining'")
        (tracked,) = store.search_runs([experiment.experiment_id])
        assert (tracked.info.run_name, tracked.info.status) == (run.name, "FINISHED")

        count = "import ray; ray.init(log_to_driver=False); print('nodes', len(ray.nodes()))"
        again = local("2", "--", "python", "-c", count, timeout=200)
        assert again.stdout.startswith("found ")
        assert "starting  worker node 2" in again.stdout
        assert "nodes 3" in again.stdout

        # A job's files are deleted on a node that has done its part, and only there.
        folders = Path((state / "temporary").read_text().strip())
        assert {path.name for path in folders.iterdir()} == {"0", "1", "2"}
        assert {host for host, name in listening(state) if name == "dashboard"} == {"127.0.0.1"}
        assert "Unauthenticated" in nodes_seen(state, "f" * 64)
        assert nodes_seen(state, token) == "3\n"

        # A path that is another folder in each process, as if on two machines.
        prepare = (
            f"{REPOSITORY}/workflows/prepare.py --text docs://json --output /proc/self/cwd/out"
        )
        refused = local("2", "--", "sh", "-c", f"cd {tmp_path} && python {prepare}", timeout=200)
        # Ray shows a failed job's last lines twice.
        (line,) = {line for line in refused.stdout.splitlines() if "error" in line[:8]}
        assert "2 of 2 other nodes cannot reach the folder: /proc/self/cwd/out" in line
        assert "exit code 2" in refused.stdout + refused.stderr
        assert processes_of(state)
    finally:
        stopped = local("stop", timeout=200)
    assert "stopped " in stopped.stdout
    assert processes_of(state) == []
    assert not folders.exists()
    # Another cluster of this machine goes on.
    assert ray.get(ray.remote(num_cpus=1)(lambda: os.getpid()).remote()) > 0


@pytest.mark.ray
@pytest.mark.slow
def test_a_job_that_is_stopped_leaves_a_checkpoint(local, state, tmp_path, subprocess_environment):
    runs = tmp_path / "home" / ".bertline" / "runs"
    # A checkpoint of its own would come after hours.
    command = "python workflows/pretrain.py --name long --checkpoint.every_steps 1000000"
    words = [SCRIPT, "--", *command.split()]
    with subprocess.Popen(words, cwd=tmp_path, env=subprocess_environment) as job:
        try:
            end = time.monotonic() + 280
            while not has_steps(runs / "long" / JOURNAL_NAME):
                assert job.poll() is None and time.monotonic() < end
                time.sleep(0.5)
        finally:
            stopped = local("stop", timeout=200)
    assert "stopping  python workflows/pretrain.py" in stopped.stdout
    (checkpoint,) = committed_checkpoints(runs / "long" / "checkpoints")
    assert checkpoint_step(checkpoint) > 0
    assert processes_of(state) == []


INFRA = Path(__file__).parents[3] / "infra"


def table():
    """Ports by what says them."""
    text = (INFRA / "README.md").read_text(encoding="utf-8")
    rows = re.search(r"^\| port \|.*\n\|---.*\n((?:\|.*\n)+)", text, re.MULTILINE)[1].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {said.strip("`"): port for port, _, said, _ in cells}


def ports_said(name):
    """The ports in the start commands of a launcher file, by option."""
    config = yaml.safe_load((INFRA / "ray" / f"{name}.yaml").read_text())
    commands = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    words = [word for command in commands for word in shlex.split(command)]
    options = [word.split("=") for word in words if re.match(r"--[\w-]*port=", word)]
    assert len({option for option, _ in options}) >= 10
    found = dict(options)
    assert all(found[option] == port for option, port in options)
    return found


@pytest.mark.parametrize("name", ["gpu", "tpu"])
def test_the_table_has_the_ports_of_the_start_commands_and_no_others(name):
    told = {said: port for said, port in table().items() if said.startswith("--")}
    assert told == ports_said(name)


def test_the_table_has_the_ports_of_ray_serve():
    told = {said: port for said, port in table().items() if said.startswith("RAY_SERVE_")}
    assert len(told) == 5
    assert told == {said: str(getattr(constants, said)) for said in told}
    set_here = (INFRA / "ray-serve.env").read_text()
    assert not [said for said in told if said in set_here]
    serve = yaml.safe_load((INFRA / "serve.yaml").read_text())
    assert table()["http_options.port"] == str(serve["http_options"]["port"])


def test_no_port_is_told_twice():
    ports = list(table().values())
    assert len(set(ports)) == len(ports)
