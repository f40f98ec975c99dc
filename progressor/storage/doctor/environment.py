"""The surroundings of an engine: all that is looked at besides its laws, in the order of reading.

Each subject is a file: the server, our schema in it, the configured namespaces, replicas and their
work, other sessions.
``surroundings_thresholds`` says from when on something is worth a word.
"""

from progressor.storage.doctor import (
    configuration as surroundings_config,
)
from progressor.storage.doctor import (
    schema as surroundings_schema,
)
from progressor.storage.doctor import (
    server as surroundings_server,
)
from progressor.storage.doctor import (
    sessions as surroundings_sessions,
)
from progressor.storage.doctor import (
    work as surroundings_work,
)

CHECKS = (
    *surroundings_server.CHECKS,
    *surroundings_schema.CHECKS,
    *surroundings_config.CHECKS,
    *surroundings_work.CHECKS,
    *surroundings_sessions.CHECKS,
)
