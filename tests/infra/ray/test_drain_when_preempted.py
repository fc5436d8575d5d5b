"""A machine that is taken back tells Ray, in words that Ray's command line knows."""

import subprocess
from pathlib import Path

from ray.scripts import scripts

SCRIPT = Path(__file__).parents[3] / "infra" / "ray" / "drain_when_preempted.sh"

# Google's answer, first that nothing has happened, then the notice.
CURL = """
[[ "$*" == *Metadata-Flavor*instance/preempted?wait_for_change=true ]] || exit 7
if [[ -e asked ]]; then printf TRUE; else touch asked; printf FALSE; fi"""


def test_the_notice_becomes_a_drain_of_this_node(tmp_path):
    node = "ab" * 28
    for name, body in (
        ("curl", CURL),
        ("python", f"echo {node}"),
        ("ray", '[[ -e asked ]] && printf "%s\\n" "$@" > called'),
    ):
        program = tmp_path / "programs" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}/programs:/usr/bin:/bin"}
    subprocess.run([SCRIPT], cwd=tmp_path, env=environment, check=True, timeout=30)
    name, *words = (tmp_path / "called").read_text().splitlines()
    drain = scripts.cli.commands[name].make_context(name, words).params
    assert drain["node_id"] == node
    assert drain["reason"] == "DRAIN_NODE_REASON_PREEMPTION"
    assert 20 <= drain["deadline_remaining_seconds"] < 30
