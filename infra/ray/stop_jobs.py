"""Stops the jobs of a cluster, and waits until each has left its checkpoint: [DASHBOARD].

local.sh runs it before its nodes go, compose.yaml before the head's container does, and Kubernetes,
which has this text in kuberay/base/settings.yaml, before the head's pod does.
"""

import sys
import time

from ray.job_submission import JobSubmissionClient

client = JobSubmissionClient(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8265")
stopped = []
for job in client.list_jobs():
    if job.submission_id and not job.status.is_terminal():
        print(f"stopping  {job.entrypoint}", flush=True)
        client.stop_job(job.submission_id)
        stopped.append(job.submission_id)
for name in stopped:
    while not client.get_job_status(name).is_terminal():
        time.sleep(0.5)
