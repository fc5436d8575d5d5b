#!/usr/bin/env bash
# Waits on a Google machine until it is to be taken back, and tells Ray: the node takes no new work,
# and training writes a checkpoint while there is time. Ends when it has told it.
set -euo pipefail

METADATA=http://metadata.google.internal/computeMetadata/v1/instance/preempted
# Google ends the machine 30 seconds after its notice.
NOTICE_SECONDS=25

# Asked now, for it takes seconds that there are none of later.
node=$(python -c '
import ray

ray.init(address="auto", log_to_driver=False)
print(ray.get_runtime_context().get_node_id())')

until [[ $(curl --silent --header "Metadata-Flavor: Google" "$METADATA?wait_for_change=true") == TRUE ]]; do
  sleep 1
done
ray drain-node --node-id "$node" --reason DRAIN_NODE_REASON_PREEMPTION \
  --reason-message "the machine is taken back" --deadline-remaining-seconds "$NOTICE_SECONDS"
