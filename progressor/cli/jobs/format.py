"""The format of a job file, for the help."""

JOB_FORMAT = """\
A *.toml file is read as TOML, any other as JSON; - reads JSON from standard input.

  job_id = "release-7"           # or --id
  deadline = "2h"                # from now, or an instant; or --deadline
  context = { user = "u" }       # passed on to every node
  metadata = { team = "core" }   # of the job's process, see list --metadata

  [nodes.build]                  # a node, by its name
  args = { ref = "main" }        # any JSON; or args_text, or args_base64

  [nodes.deploy]
  after = ["build"]              # the nodes that must be done first
  wants_results = true           # its first step gets their results
  namespace = "deployments"      # the namespace whose processor runs it
  process_id = "deploy-7"        # the id of its process
  target = "host-3:7500"         # the only processor target that may run it
  zombie_policy = "fail"         # or "retry"; overrides that of the namespace

  [nodes.deploy.constraints]     # as the options of start
  gates = ["db=1"]
  order = "db=1.10"
  run_at = "2026-01-31T12:00:00Z"
  priority = 1
  hold = "process"

  [nodes.deploy.retry]           # overrides the policy of the namespace
  attempts_max = 3
  initial_interval = "1s"
  interval_max = "1m"
  elapsed_max = "1h"
  coefficient = 2
  jitter = 0.2
  non_retryable_reasons = ["BAD_CARD"]

In JSON: {"job_id": "release-7", "nodes": {"build": {"args": {"ref": 1}}, …}}
Durations are written as 30s, 10m or 2h."""
