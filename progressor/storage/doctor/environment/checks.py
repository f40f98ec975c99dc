"""The environment of an engine: all checks besides the invariants, in the order of reading.

Each subject is a file: the server, our schema in it, the configured namespaces, replicas and their
work, other sessions.
``thresholds`` says from when on something is worth a warning.
"""

from progressor.storage.doctor.environment import configuration as environment_config
from progressor.storage.doctor.environment import schema as environment_schema
from progressor.storage.doctor.environment import server as environment_server
from progressor.storage.doctor.environment import sessions as environment_sessions
from progressor.storage.doctor.environment import work as environment_work

CHECKS = (
    *environment_server.CHECKS,
    *environment_schema.CHECKS,
    *environment_config.CHECKS,
    *environment_work.CHECKS,
    *environment_sessions.CHECKS,
)
