#!/usr/bin/env bash
# Waits for Google's preemption notice and drains the Ray node: it takes no new work, and training
# writes a checkpoint in time. Exits afterwards.
set -euo pipefail

METADATA=http://metadata.google.internal/computeMetadata/v1/instance/preempted
# Google stops the machine 30 seconds after its notice.
NOTICE_SECONDS=25

# Looked up now, because it takes seconds.
node=$(python -c '
import ray

ray.init(address="auto", log_to_driver=False)
print(ray.get_runtime_context().get_node_id())')

until [[ $(curl --silent --header "Metadata-Flavor: Google" "$METADATA?wait_for_change=true") == TRUE ]]; do
  sleep 1
done
ray drain-node --node-id "$node" --reason DRAIN_NODE_REASON_PREEMPTION \
  --reason-message "the machine is taken back" --deadline-remaining-seconds "$NOTICE_SECONDS"
