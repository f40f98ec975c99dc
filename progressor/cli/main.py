"""Which commands there are, and how all of them end: the entry point of ``progressor``."""

import itertools
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

import progressor
from progressor import errors
from progressor.cli.jobs.format import JOB_FORMAT
from progressor.cli.output.exit_codes import EPILOGUE, ExitCode
from progressor.cli.output.failure import only_ours, report, report_words

_ROOM = "progressor.cli"
_SUMMARY = "A durable process engine on PostgreSQL, called over gRPC."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: Without the program's name; None: those of this process.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_text(tokens)
        result = build_app()(
            tokens, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        code = ExitCode.USAGE
        report_words(str(error), "USAGE", {}, code=code, as_json=_asks_json(tokens))
        return code
    except errors.ProgressorError as error:
        return report(error, as_json=_asks_json(tokens))
    except ExceptionGroup as group:
        known = only_ours(group)
        if known is None:
            raise
        return report(known, as_json=_asks_json(tokens))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe; the interpreter's last flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    return result if isinstance(result, ExitCode) else ExitCode.DONE


def build_app() -> App:
    """Return the commands; each one's module is imported when it is asked for."""
    app = App(
        "progressor",
        help=_SUMMARY,
        help_format="plaintext",
        help_epilogue=EPILOGUE,
        version=progressor.__version__,
        default_parameter=Parameter(show_default=_shown_default),
    )
    for group, commands in _COMMANDS.items():
        _add(app, commands, group=group)
    for name, (group, summary, commands) in _FAMILIES.items():
        family = App(name, help=summary, group=group, help_epilogue="")
        _add(family, commands)
        app.command(family)
    return app


def _add(app: App, commands: Sequence[tuple[str, str, str]], **options: str) -> None:
    # What is at the end of the top's help stands there alone.
    for name, place, summary in commands:
        app.command(f"{_ROOM}.{place}", name=name, help=summary, help_epilogue="", **options)


_COMMANDS = {
    "Engine": (
        ("serve", "engine.serve:serve", "Run an engine."),
        ("dev", "dev.dev:dev", "Run an engine with an example, and play it."),
        ("migrate", "engine.migrate:migrate", "Bring a database to this release's schema."),
        ("doctor", "doctor.doctor:doctor", "Examine a database, and say what to do."),
        ("config", "engine.settings:show_config", "Print the configuration in force."),
        ("health", "engine.health:health", "Ask an engine for its health."),
        ("replicas", "engine.replicas:replicas", "Print the replicas on an engine's database."),
        ("top", "top.top:top", "Watch what an engine does, and what waits."),
        ("log-level", "engine.log_level:log_level", "Change how much a replica's log says."),
        ("example-processor", "dev.example:example_processor", "Serve the example's processor."),
        ("version", "engine.version:version", "Print the version."),
    ),
    "Processes": (
        ("start", "processes.requests:start", "Create a process."),
        ("call", "processes.requests:call", "Run a call on a process."),
        ("notify", "processes.requests:notify", "Leave a call without an answer."),
        (
            "repair",
            "processes.requests:repair",
            "Ask the processor to bring a broken process back.",
        ),
        ("simple-repair", "processes.requests:simple_repair", "Bring it back without asking."),
        ("await", "processes.requests:await_task", "Wait for a task."),
        ("cancel", "processes.requests:cancel", "Cancel a task that waits."),
        ("get", "processes.reads:get", "Print a process."),
        ("why", "processes.why:why", "Say what a process waits for."),
        ("trace", "processes.reads:trace", "Print the tasks of a process as a timeline."),
        (
            "list",
            "processes.reads:list_processes",
            "Print the processes of a namespace, or of all.",
        ),
        ("put", "processes.writes:put", "Import a process."),
        ("remove", "processes.writes:remove", "Delete a process."),
    ),
}
_NAMESPACE_COMMANDS = (
    ("create", "namespaces.namespaces:create", "Create a namespace."),
    ("update", "namespaces.namespaces:update", "Change a namespace."),
    ("get", "namespaces.namespaces:get", "Print a namespace."),
    ("list", "namespaces.namespaces:list_namespaces", "Print all namespaces."),
    ("delete", "namespaces.namespaces:delete", "Delete an empty namespace."),
)
_GATE_COMMANDS = (
    ("list", "gates.gates:list_gates", "Print the gates of a namespace."),
    ("get", "gates.gates:get", "Print a gate, who holds it and who waits for it."),
    ("set", "gates.gates:set_capacity", "Set how many may hold a gate."),
    ("delete", "gates.gates:delete", "Delete a gate that nobody uses."),
)
_JOB_COMMANDS = (
    ("submit", "jobs.jobs:submit", f"Submit a job from a file.\n\n{JOB_FORMAT}"),
    ("get", "jobs.jobs:get", "Print a job, its graph and its nodes."),
    ("list", "jobs.jobs:list_jobs", "Print the jobs of a namespace."),
    ("watch", "jobs.jobs:watch", "Watch a job until it ends; the exit code tells how."),
    ("retry", "jobs.jobs:retry", "Go on with a failed job from its failed nodes."),
    ("cancel", "jobs.jobs:cancel", "End a job."),
)
_SCHEDULE_COMMANDS = (
    ("create", "schedules.schedules:create", "Make a schedule."),
    ("update", "schedules.schedules:update", "Change a schedule."),
    ("get", "schedules.schedules:get", "Print a schedule and its firings."),
    ("list", "schedules.schedules:list_schedules", "Print the schedules of a namespace."),
    ("next", "schedules.schedules:print_next", "Print the next firings of a schedule."),
    ("pause", "schedules.schedules:pause", "Have a schedule fire no more."),
    ("resume", "schedules.schedules:resume", "Have a paused schedule fire again."),
    ("trigger", "schedules.schedules:trigger", "Fire a schedule now."),
    ("backfill", "schedules.schedules:backfill", "Fire the instants of a span of the past."),
    ("delete", "schedules.schedules:delete", "Delete a schedule."),
)


_FAMILIES = {
    "namespace": ("Namespaces", "Create, change and read namespaces.", _NAMESPACE_COMMANDS),
    "gate": ("Namespaces", "Read and set gates, which tasks wait for.", _GATE_COMMANDS),
    "job": ("Jobs", "Submit, watch and retry jobs, graphs of processes.", _JOB_COMMANDS),
    "schedule": ("Jobs", "Make and follow schedules, which fire on time.", _SCHEDULE_COMMANDS),
}
"""Commands of two words: their group and summary, and the second words."""


def _shown_default(value: object) -> str | None:
    """Return the default for the help; that something is off or empty needs no word."""
    return None if value in (None, False, "", ()) else str(value)


def _asks_json(tokens: Sequence[str]) -> bool:
    """Return whether --json is asked for, not a value or an argument that reads the same."""
    try:
        _, bound, _ = build_app().parse_args(tokens, exit_on_error=False, print_error=False)
    except (CycloptsError, errors.ProgressorError):
        return "--json" in itertools.takewhile(lambda it: it != "--", tokens)
    return any(
        getattr(value, "json", False) is True or (name == "json" and value is True)
        for name, value in bound.arguments.items()
    )


def _check_text(tokens: Sequence[str]) -> None:
    """Refuse what the shell passed as bytes that are not UTF-8: the wire takes none."""
    for position, token in enumerate(tokens, start=1):
        try:
            token.encode()
        except UnicodeEncodeError as error:
            raise errors.InvalidRequestError(
                errors.FieldViolation(f"argument {position}", f"{token!r} is not UTF-8")
            ) from error
