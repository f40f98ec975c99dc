"""Lines that libraries write to standard error become records of a JSON log."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WAIT_SECONDS = 120

PROGRAM = """
import contextlib, logging, os, signal, sys
from progressor.telemetry.logs.setup import whole_log

with whole_log(level="info", log_format={log_format!r}):
    logging.getLogger("ours").info("before")
{body}
    logging.getLogger("ours").info("after")
sys.stderr.write("restored\\n")
"""

CORE = b"""
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
E0000 00:00:1763907945.107831    9594 ssl_transport_security.cc:1558] Invalid "cert" chain.
I1123 14:55:44.100575    9594 log.cc:102] two
"""


def run(body: str, *, log_format: str = "json") -> tuple[int, str]:
    """Return the exit code and the standard error of a program with a whole log."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(log_format=log_format, body=lines)],
        stderr=subprocess.PIPE, timeout=WAIT_SECONDS, check=False, text=True,
        cwd=Path(__file__).parents[4], env={**os.environ, "GRPC_VERBOSITY": "info"},
    )  # fmt: skip
    return done.returncode, done.stderr


def records(body: str) -> list[dict[str, Any]]:
    """Return the records between those that the program says itself, which must be whole."""
    code, said = run(body)
    *lines, last = said.splitlines()
    found = [json.loads(line) for line in lines]
    assert (code, last) == (0, "restored")
    ours = [it["event"] for it in found if it["logger"] == "ours"]
    assert ours == ["before", "after"]
    return [it for it in found if it["logger"] != "ours"]


def test_a_line_of_grpcs_core_is_a_record_with_its_level_and_place() -> None:
    found = records(f"os.write(2, {CORE!r})")

    assert [(it["logger"], it["level"], it["event"], it["place"]) for it in found] == [
        ("grpc_core", "error", 'Invalid "cert" chain.', "ssl_transport_security.cc:1558"),
        ("grpc_core", "info", "two", "log.cc:102"),
    ]


def test_grpc_itself_writes_such_lines() -> None:
    found = records("""
import grpc
with contextlib.suppress(RuntimeError):
    server = grpc.server(None)
    server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(b"x", b"y")]))
""")

    assert "grpc_core" in {it["logger"] for it in found if it["level"] == "error"}


def test_a_flood_blocks_nobody() -> None:
    code, said = run("""
import ctypes
write = ctypes.PyDLL(None).write  # holds the interpreter's lock, which the reader needs
for number in range(5_000):
    line = b"%d " % number + b"x" * 1_000 + b"\\n"
    write(2, line, len(line))
""")

    assert code == 0
    assert said.endswith("restored\n")


def test_a_record_that_cannot_be_written_makes_no_new_ones() -> None:
    code, said = run("""
import atexit
written = []
class Broken:
    def write(self, text):
        written.append(text)
        raise OSError("no space left")
    def flush(self):
        pass
atexit.register(lambda: print(len(written), file=sys.stderr))
logging.getLogger().handlers[0].setStream(Broken())
os.write(2, b"a line\\n")
""")

    *_, restored, count = said.splitlines()
    assert (code, restored) == (0, "restored")
    # The line, "after", and what Python says of the failure to write the latter.
    assert 2 <= int(count) < 50
    assert "no space left" not in said
