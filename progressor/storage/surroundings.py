"""The surroundings of an engine: all that is looked at besides its laws, in the order of reading.

Each subject is a file: the server, our schema in it, the configured namespaces, replicas and their
work, other sessions.
``surroundings_thresholds`` says from when on something is worth a word.
"""

from progressor.storage import (
    surroundings_config,
    surroundings_schema,
    surroundings_server,
    surroundings_sessions,
    surroundings_work,
)

CHECKS = (
    *surroundings_server.CHECKS,
    *surroundings_schema.CHECKS,
    *surroundings_config.CHECKS,
    *surroundings_work.CHECKS,
    *surroundings_sessions.CHECKS,
)
