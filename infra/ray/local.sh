#!/usr/bin/env bash
# A Ray cluster of several nodes on this machine: see `infra/ray/local.sh --help`.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: infra/ray/local.sh [WORKERS] [-- COMMAND...]
       infra/ray/local.sh stop

Starts a Ray head and WORKERS nodes (1) that share this machine's cores, with token authentication;
submits the quickstart, 400 of its 2,600 steps, as a job with as many training workers, and shows its
log. The same again uses the cluster that is there, and a finished run prints its summary.

  WORKERS     nodes beside the head; more than there are: the missing ones are started
  -- COMMAND  what to submit in place of it; the whole quickstart: -- python workflows/pretrain.py
  stop        ends the cluster and nothing else; a job at work leaves a checkpoint first
  --help      this text

The dashboard answers on 127.0.0.1 alone. Ctrl-C leaves the job running. ~/.bertline/cluster holds
the token, the address and what the nodes said (BERTLINE_CLUSTER_FOLDER names another, for a second
cluster); the run lies in ~/.bertline.
TEXT
}

fail() {
  echo "error: $1" >&2
  exit 2
}

# Minutes on two cores: fewer steps, with a complete schedule.
quickstart=(python workflows/pretrain.py --phases '[{"sequence_length": 128, "steps": 400}]'
  --optimizer.warmup_steps 40)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
state=${BERTLINE_CLUSTER_FOLDER:-$HOME/.bertline/cluster}
log=$state/nodes.log

# Uses the checkout's environment or the active one; creates one if there is none.
find_environment() {
  if [[ -x $root/.venv/bin/ray ]]; then
    PATH=$root/.venv/bin:$PATH
  elif ! command -v ray >/dev/null; then
    make -C "$root" environment EXTRAS= || fail "no Python environment with Ray: see what make says"
    PATH=$root/.venv/bin:$PATH
  fi
}

# Free ports on all addresses: Ray's defaults if they are free, otherwise others.
free_ports() {
  python - "$@" <<'PYTHON'
import socket
import sys

taken = []
for wanted in sys.argv[1:]:
    taken.append(socket.socket())
    # A port that was just closed can be reused at once.
    taken[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken[-1].bind(("", int(wanted)))
    except OSError:
        taken[-1].bind(("", 0))
print(*(each.getsockname()[1] for each in taken))
PYTHON
}

# The processes of this cluster, recognized by an inherited environment variable.
processes() {
  python - "BERTLINE_CLUSTER" "$state" <<'PYTHON'
import sys

import psutil

name, value = sys.argv[1:]
for process in psutil.process_iter():
    try:
        if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
            print(process.pid)
    except psutil.Error:
        pass
PYTHON
}

# The nodes' address: not reachable from other machines, and independent of the network. Ray
# replaces 127.0.0.1 by the network address; that is the fallback where the system has no other
# loopback address.
node_address() {
  python - <<'PYTHON'
import socket

with socket.socket() as probe:
    try:
        probe.bind(("127.0.0.2", 0))
        print("127.0.0.2")
    except OSError:
        print("127.0.0.1")
PYTHON
}

# A folder for each node: nodes that share one also share a job's files, and the first one to finish
# would delete them for all.
start_node() {
  local ports host folder=$1
  shift
  host=$(node_address)
  # The system chooses workers' ports, since several nodes share this machine.
  read -ra ports < <(free_ports 52365 52366 8078 8080)
  BERTLINE_CLUSTER=$state ray start --node-ip-address="$host" --temp-dir="$folder" \
    --disable-usage-stats --dashboard-agent-listen-port="${ports[0]}" \
    --dashboard-agent-grpc-port="${ports[1]}" \
    --runtime-env-agent-port="${ports[2]}" --metrics-export-port="${ports[3]}" \
    --min-worker-port=0 --max-worker-port=0 --object-store-memory=500000000 "$@" >>"$log" 2>&1 </dev/null ||
    fail "a node did not start: $(grep -v '^ *$' "$log" | tail -1); see $log"
}

start_head() {
  local ports temporary
  read -ra ports < <(free_ports 6379 8265 10001)
  # Not in the state folder, because the paths of Ray's sockets must be short.
  temporary=$(mktemp -d /tmp/bertline.XXXXXX)
  echo "$temporary" >"$state/temporary"
  echo "starting  a Ray head"
  : >"$log"
  start_node "$temporary/0" --head --num-cpus=0 --port="${ports[0]}" \
    --dashboard-host=127.0.0.1 --dashboard-port="${ports[1]}" \
    --ray-client-server-port="${ports[2]}"
  echo "$(node_address):${ports[0]}" >"$state/address"
  echo "http://127.0.0.1:${ports[1]}" >"$state/dashboard"
  echo 0 >"$state/workers"
}

start_workers() {
  local cores each number
  cores=$(python -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')
  each=$((cores / $1 > 0 ? cores / $1 : 1))
  for ((number = $(<"$state/workers") + 1; number <= $1; number++)); do
    echo "starting  worker node $number with $each CPU"
    start_node "$(<"$state/temporary")/$number" --address="$(<"$state/address")" --num-cpus="$each"
    echo "$number" >"$state/workers"
  done
}

# The token, created once and never printed.
authenticate() {
  mkdir -p "$state"
  state=$(cd "$state" && pwd)
  log=$state/nodes.log
  [[ -s $state/token ]] ||
    (umask 077 && python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$state/token")
  chmod 600 "$state/token"
  unset RAY_ADDRESS RAY_AUTH_TOKEN
  set -a
  # shellcheck source=/dev/null
  . "$root/infra/ray/node.env"
  set +a
  export RAY_AUTH_TOKEN_PATH=$state/token
}

start() {
  local workers=$1
  shift
  if [[ -s $state/dashboard && -n $(processes) ]]; then
    echo "found     the cluster of $state with $(<"$state/workers") worker nodes"
  else
    stop >/dev/null
    start_head
  fi
  start_workers "$workers"
  workers=$(<"$state/workers")
  if [[ $# -eq 0 ]]; then
    set -- "${quickstart[@]}"
    [[ $workers -eq 1 ]] || set -- "$@" --cluster.num_workers "$workers"
  fi
  echo "cluster   $(<"$state/dashboard"); for your own commands:"
  echo "          export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$state/token"
  echo "submits   $*"
  cd "$root"
  trap 'echo "the job goes on; infra/ray/local.sh shows it again, stop ends it" >&2; exit 130' INT
  ray job submit --address "$(<"$state/dashboard")" --working-dir . -- "$@"
}

# Stops jobs with SIGTERM and time for a checkpoint, then the nodes and remaining processes.
stop() {
  local waited left
  left=$(processes)
  if [[ -n $left ]]; then
    [[ ! -s $state/dashboard ]] || python "$root/infra/ray/stop_jobs.py" "$(<"$state/dashboard")" 2>>"$log" ||
      echo "its jobs do not answer, and end without a checkpoint of now"
    left=$(processes)
    # shellcheck disable=SC2086
    kill $left 2>/dev/null || true
    for ((waited = 0; waited < 100; waited++)); do
      left=$(processes)
      [[ -n $left ]] || break
      sleep 0.1
    done
    # shellcheck disable=SC2086
    [[ -z $left ]] || kill -9 $left 2>/dev/null || true
    echo "stopped   the cluster of $state"
  else
    echo "nothing to stop: no cluster of $state is running"
  fi
  if [[ -s $state/temporary ]]; then
    rm -rf -- "$(<"$state/temporary")"
  fi
  rm -f -- "$state/temporary" "$state/address" "$state/dashboard" "$state/workers"
}

main() {
  local workers=1
  case ${1:-} in
  --help | -h)
    usage
    return
    ;;
  stop)
    [[ $# -eq 1 ]] || fail "stop takes nothing else"
    find_environment
    authenticate
    stop
    return
    ;;
  esac
  if [[ $# -gt 0 && $1 != -- ]]; then
    [[ $1 =~ ^[1-9][0-9]?$ ]] || fail "'$1' is neither a number of workers nor stop; see --help"
    workers=$1
    shift
  fi
  if [[ $# -gt 0 ]]; then
    [[ $1 == -- && $# -gt 1 ]] || fail "a command comes after the workers and --; see --help"
    shift
  fi
  find_environment
  authenticate
  start "$workers" "$@"
}

main "$@"
