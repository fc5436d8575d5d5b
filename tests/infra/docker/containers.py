"""Services of compose.yaml, as Docker Compose reads them, and run as plain processes.

Each process has a network of its own with the names of the others, its secrets, its volumes, and a
file system that is discarded. What an image would bring is this machine's."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from yaml_files import INFRA, document, environment

FOLDER = INFRA / "docker"
COMPOSE = FOLDER / "compose.yaml"
DOCKERFILE = FOLDER / "Dockerfile"


@cache
def compose():
    """The whole file."""
    return document(COMPOSE)


def services():
    """The services by name."""
    return compose()["services"]


def secret_file(name):
    """Where the file of a secret lies, from the folder of compose.yaml."""
    return compose()["secrets"][name]["file"]


def variables(service):
    """What a service has in its environment: its files, then what is said of it."""
    found = {}
    for path in service.get("env_file", []):
        found |= environment(FOLDER / path)
    said = {name: filled(value) for name, value in service.get("environment", {}).items()}
    return found | said


def filled(text, **given):
    """A text with ${NAME:-DEFAULT} filled in and $$ as $."""

    def fill(match):
        return given.get(match["name"], match["default"])

    text = re.sub(r"(?<!\$)\$\{(?P<name>\w+):-(?P<default>[^}]*)\}", fill, text)
    assert not re.search(r"(?<!\$)\$(?!\$)", text), text
    return text.replace("$$", "$")


def mounts(service):
    """What is mounted: (source, target, whether it is a file or folder of the checkout)."""
    for each in service.get("volumes", []):
        source, target, *_ = each.split(":")
        yield source, target, source.startswith(".")


REPOSITORY = FOLDER.parents[1]
NETWORK = "10.77.0"
"""Of networks that end with the test, which nothing else can reach."""

_ENTER = """
set -e
hostname "$BERTLINE_NAME"
layers=$1 folder=$2; shift 2
mount -t tmpfs layers "$layers"
mkdir "$layers/upper" "$layers/work" "$layers/root"
mount -t overlay root -o "lowerdir=/,upperdir=$layers/upper,workdir=$layers/work" "$layers/root"
for each in proc sys dev; do mount --rbind "/$each" "$layers/root/$each"; done
while IFS=: read -r source target; do
  if [ -d "$source" ]; then mkdir -p "$layers/root$target"; else
    mkdir -p "$layers/root$(dirname "$target")"; touch "$layers/root$target"; fi
  mount --bind "$source" "$layers/root$target"
done <"$folder/mounts"
exec chroot "$layers/root" env --chdir="$BERTLINE_WORKDIR" "$@"
"""


class Container:
    """A service that runs, or has run."""

    def __init__(self, name, folder, network):
        self.name = name
        self.folder = folder
        self.service = services()[name]
        self._network = network
        self._environment = environment_of(self.service, folder) | {"BERTLINE_NAME": name}
        self._processes = []

    def start(self, command=None):
        """Runs the service's command, or another in its place; its output goes to a file."""
        command = command or [filled(word) for word in self.service["command"]]
        with self.log.open("ab") as log:
            self._processes.append(self._popen(command, stdout=log, stderr=log))
        return self._processes[-1]

    @property
    def log(self):
        """What it has said."""
        return self.folder / "log"

    def run(self, *command, timeout=120):
        """What `docker compose exec` would do: another command, to its end."""
        process = self._popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said, _ = process.communicate(timeout=timeout)
        return process.returncode, said

    def wait_until_healthy(self, command=None, seconds=120):
        """Waits for the service's own check to pass."""
        command = command or self.service["healthcheck"]["test"][1:]
        deadline = time.monotonic() + seconds
        while True:
            code, said = self.run(*command)
            if code == 0:
                return
            running = self._processes[-1].poll() is None
            assert running and time.monotonic() < deadline, said + self.log.read_text()[-3000:]
            time.sleep(0.5)

    def _popen(self, command, **options):
        # A layer each: `docker exec` would share it, which no test needs.
        layers = tempfile.mkdtemp(dir=self.folder)
        words = ["ip", "netns", "exec", self._network, "unshare", "--uts", "bash", "-c", _ENTER]
        return subprocess.Popen(
            [*words, "enter", layers, str(self.folder), *command],
            env=self._environment,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            **options,
        )


def environment_of(service, folder):
    """A service's variables; programs are found where the tests find them."""
    home = folder / "home"
    home.mkdir()
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    base = {"PATH": programs, "HOME": str(home), "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    return base | {"BERTLINE_WORKDIR": str(REPOSITORY)} | variables(service)


def write_mounts(name, folder, secrets, volumes, names):
    """What lies where in a service's file system, a line each."""
    resolver = folder / "resolver"
    # Nobody listens there, and says so at once.
    resolver.write_text("nameserver 127.0.0.1\n")
    lines = [f"{names}:/etc/hosts", f"{resolver}:/etc/resolv.conf"]
    for secret in services()[name].get("secrets", []):
        lines.append(f"{secrets / Path(secret_file(secret)).name}:/run/secrets/{secret}")
    for source, target, is_ours in mounts(services()[name]):
        place = (FOLDER / source).resolve() if is_ours else volumes / source
        if not is_ours:
            place.mkdir(exist_ok=True)
            place.chmod(0o777)
        lines.append(f"{place}:{target}")
    (folder / "mounts").write_text("\n".join(lines) + "\n")


@contextmanager
def containers(tmp_path):
    """A container for each service, none of them started; at the end nothing is left of them."""
    secrets = tmp_path / "secrets"
    subprocess.run(
        [FOLDER / "secrets.sh"],
        env=os.environ | {"BERTLINE_SECRETS": str(secrets)},
        check=True,
        capture_output=True,
    )
    names = tmp_path / "hosts"
    addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(services(), 2)}
    lines = ["127.0.0.1 localhost", *(f"{where} {name}" for name, where in addresses.items())]
    names.write_text("\n".join(lines) + "\n")
    volumes = tmp_path / "volumes"
    volumes.mkdir()
    prefix = f"bertline{os.getpid()}"
    made = []
    try:
        _ip("netns", "add", f"{prefix}-switch")
        made.append(f"{prefix}-switch")
        _ip("-n", made[0], "link", "add", "switch", "type", "bridge")
        _ip("-n", made[0], "addr", "add", f"{NETWORK}.1/24", "dev", "switch")
        _ip("-n", made[0], "link", "set", "switch", "up")
        found = {}
        for number, (name, address) in enumerate(addresses.items()):
            network = f"{prefix}-{name}"
            _ip("netns", "add", network)
            made.append(network)
            _connect(made[0], network, number, address)
            folder = tmp_path / name
            folder.mkdir()
            write_mounts(name, folder, secrets, volumes, names)
            found[name] = Container(name, folder, network)
        yield found
    finally:
        for network in reversed(made):
            _end(network)
            _ip("netns", "delete", network)


def _connect(switch, network, number, address):
    end = f"port{number}"
    _ip("-n", switch, "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", network)
    _ip("-n", switch, "link", "set", end, "master", "switch", "up")
    _ip("-n", network, "link", "set", "lo", "up")
    _ip("-n", network, "addr", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", network, "link", "set", "eth0", "up")
    _ip("-n", network, "route", "add", "default", "via", f"{NETWORK}.1")


def _end(network):
    """Ends what runs in a network, first by asking."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for _ in range(50):
            pids = _ip("netns", "pids", network).split()
            if not pids:
                return
            for pid in pids:
                try:
                    os.kill(int(pid), number)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)


def _ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def can_run_here():
    """Whether this machine lets the test make networks."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"bertline{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return False
    _ip("netns", "delete", name)
    return True
