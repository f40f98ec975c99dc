"""What a file of a job looks like, for the help; nothing is imported for it."""

JOB_FORMAT = """\
A file is TOML, by its name *.toml, or JSON; - reads JSON from standard input.

  job_id = "release-7"           # or --id
  deadline = "2h"                # from now on, or an instant; or --deadline
  context = { user = "u" }       # handed to every node
  metadata = { team = "core" }   # of the job's process, see list --metadata

  [nodes.build]                  # a node, by its name
  args = { ref = "main" }        # any JSON; or args_text, or args_base64

  [nodes.deploy]
  after = ["build"]              # the nodes that must be done before
  wants_results = true           # its first step gets what these gave
  namespace = "deployments"      # whose processor carries it
  process_id = "deploy-7"        # of its process
  target = "host-3:7500"         # the only processor target where it may run
  zombie_policy = "fail"         # or "retry"; in place of the namespace's

  [nodes.deploy.constraints]     # as the options of start
  gates = ["db=1"]
  order = "db=1.10"
  run_at = "2026-01-31T12:00:00Z"
  priority = 1
  hold = "process"

  [nodes.deploy.retry]           # in place of the namespace's policy
  attempts_max = 3
  initial_interval = "1s"
  interval_max = "1m"
  elapsed_max = "1h"
  coefficient = 2
  jitter = 0.2
  non_retryable_reasons = ["BAD_CARD"]

In JSON: {"job_id": "release-7", "nodes": {"build": {"args": {"ref": 1}}, …}}
Durations are as in 30s, 10m or 2h. What is wrong is told with its place."""
