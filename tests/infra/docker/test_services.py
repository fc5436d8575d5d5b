"""compose.yaml's services as processes, word for word: a job, its model, answers, metrics."""

import json
import shutil
import time

import pytest
from containers import can_run_here, containers, services
from postgres_server import programs, server_user

STAND_INS = {
    "database": "its image makes the database at its start; here PostgreSQL's programs do",
    "objects": "no SeaweedFS is packaged here; moto speaks S3 in its place",
    "grafana": "is not packaged here; its queries are run by tests/infra/monitoring",
}
"""Services whose command is not run as it stands, and why."""
OURS = {"bucket", "mlflow", "ray-head", "ray-worker", "serving", "prometheus"}
DATABASE = """
folder=/var/lib/postgresql/data
chown {user} $folder && cd $folder
alias as='setpriv --reuid={user} --regid={user} --clear-groups'; shopt -s expand_aliases
as {programs}/initdb --pgdata=$folder --username="$POSTGRES_USER" --auth=scram-sha-256 \
  --pwfile="$POSTGRES_PASSWORD_FILE"
echo "host all all all scram-sha-256" >>$folder/pg_hba.conf
sockets=$(as mktemp -d)
as {programs}/postgres -D $folder -k $sockets -c listen_addresses=127.0.0.1 &
until PGPASSWORD=$(cat $POSTGRES_PASSWORD_FILE) {programs}/createdb --host=127.0.0.1 \
  --username="$POSTGRES_USER" "$POSTGRES_DB"; do sleep 0.3; done
kill %1; wait %1
exec setpriv --reuid={user} --regid={user} --clear-groups \
  {programs}/postgres -D $folder -k $sockets -c 'listen_addresses=*'
"""
JOBS = (
    """ray job submit --working-dir . -- python workflows/prepare.py --text docs:// \
         --output /data/shards --vocabulary_size 500""",
    """ray job submit --working-dir . -- python workflows/pretrain.py --shards /data/shards \
         --storage "$BERTLINE_STORAGE" --name composed --optimizer.warmup_steps 2 \
         --phases '[{"sequence_length": 64, "steps": 20}]'""",
)
"""As infra/README.md has it, of few steps."""
ASK = """
import sys, urllib.request
key, address, *body = sys.argv[1:]
headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
data = body[0].encode() if body else None
request = urllib.request.Request(address, data, headers)
try:
    print(urllib.request.urlopen(request, timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"""


def test_every_service_is_run_or_said_why_not():
    assert {*OURS, *STAND_INS} == services().keys()


@pytest.fixture
def composed(tmp_path):
    if not can_run_here():
        pytest.skip("network namespaces cannot be made here (needs root)")
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed here")
    with containers(tmp_path) as found:
        yield found


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_what_is_composed_trains_registers_serves_and_is_seen(composed, tmp_path):
    start_what_is_below(composed)
    head = composed["ray-head"]
    head.start()
    head.wait_until_healthy()
    composed["ray-worker"].start()

    for job in JOBS:
        code, said = head.run("bash", "-c", job, timeout=300)
        assert code == 0, said
    assert "registered   models:/bert/1" in said
    assert [path.name for path in (tmp_path / "volumes" / "data").iterdir()] == ["shards"]

    server = composed["serving"]
    server.start()
    server.wait_until_healthy()
    secrets = tmp_path / "secrets"
    key = (secrets / "client_key").read_text()
    asked = "http://serving:8000/v1/features", json.dumps({"inputs": ["a text"]})
    assert ask(head, "wrong", *asked) == "401"
    answer = json.loads(ask(head, key, *asked))
    assert (answer["model"], answer["version"], len(answer["results"])) == ("bert", "1", 1)
    assert ask(head, key, "http://serving:8000/metrics") == "403"
    assert "bert" in ask(head, key, "http://serving:8000/v1/models")

    prometheus = composed["prometheus"]
    prometheus.start(["prometheus", *prometheus.service["command"]])  # its image's entry point
    prometheus.wait_until_healthy()
    # Both nodes, and on the head's Ray's autoscaler and dashboard.
    until_seen(prometheus, {"ray": 4, "serving": 1})

    job = head.start(["ray", "job", "submit", "--", "sleep", "1000"])
    deadline = time.monotonic() + 60
    while "Running entrypoint" not in head.log.read_text():
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.5)
    (hook,) = head.service["pre_stop"]
    code, said = head.run(*hook["command"], timeout=120)
    assert (code, said.strip()) == (0, "stopping  sleep 1000")


def start_what_is_below(composed):
    """Database, object store, bucket, MLflow, each when the one that it needs is well."""
    database, objects, bucket, mlflow = (
        composed[name] for name in ("database", "objects", "bucket", "mlflow")
    )
    user = server_user() or "postgres"
    script = DATABASE.replace("{user}", user).replace("{programs}", str(programs()))
    database.start(["bash", "-c", script])
    ready = [
        f"{programs()}/pg_isready",
        "--host=database",
        *database.service["healthcheck"]["test"][2:],
    ]
    database.wait_until_healthy(ready)
    objects.start(["python", "-m", "moto.server", "--host=0.0.0.0", "--port=8333"])
    objects.wait_until_healthy(
        ["python", "-c", "import socket; socket.create_connection(('objects', 8333))"]
    )
    # Once more it finds its bucket.
    for _ in range(2):
        assert bucket.start().wait(60) == 0, bucket.log.read_text()
    mlflow.start()
    mlflow.wait_until_healthy()


def ask(container, key, address, *body):
    """What a server answers to a container: the answer, or the status of a refusal."""
    code, said = container.run("python", "-c", ASK, key, address, *body)
    assert code == 0, said
    return said.strip()


def until_seen(prometheus, wanted, seconds=120):
    """Waits until Prometheus reads as many targets of each job as there are."""
    deadline = time.monotonic() + seconds
    query = "http://prometheus:9090/api/v1/query?query=sum%20by%20(job)(up)"
    while True:
        found = json.loads(ask(prometheus, "", query))["data"]["result"]
        up = {each["metric"]["job"]: int(each["value"][1]) for each in found}
        if up == wanted:
            return
        assert time.monotonic() < deadline, up
        time.sleep(1)
