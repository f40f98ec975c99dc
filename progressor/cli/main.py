"""The entry point of ``progressor``: its commands, and how each of them ends."""

import itertools
import os
import sys
from collections.abc import Collection, Mapping, Sequence

from cyclopts import App, CycloptsError, Parameter
from cyclopts.argument import ArgumentCollection

import progressor
from progressor import errors
from progressor.cli.output import EPILOGUE, ExitCode, only_ours, report, report_words

_Command = tuple[str, str, str]
"""Its name, its function and its summary, as in the help of what it belongs to."""

_ROOM = "progressor.cli"
_SUMMARY = "A durable process engine on PostgreSQL, called over gRPC."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: Without the program's name; None: ``sys.argv``.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_text(tokens)
        result = build_app(explained=tokens)(
            tokens, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        code = ExitCode.USAGE
        report_words(str(error), "USAGE", {}, code=code, as_json=_asks_json(tokens))
        return code
    except (errors.ProgressorError, ExceptionGroup) as error:
        return _reported(only_ours(error), tokens)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe: the interpreter's last flush must not report that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    return result if isinstance(result, ExitCode) else ExitCode.DONE


def build_app(*, explained: Collection[str] | None = ()) -> App:
    """Return the app; a command's module is imported when the command runs.

    Args:
        explained: Names of commands whose help is the docstring of their function, which has to be
            imported for it, instead of the summary; None for all.
    """
    app = App(
        "progressor",
        help=_SUMMARY,
        help_format="plaintext",
        help_epilogue=EPILOGUE,
        version=progressor.__version__,
        default_parameter=Parameter(show_default=_shown_default),
        config=[_fill],
    )
    for group, commands in _COMMANDS.items():
        _add(app, commands, explained, group=group)
    families = {"": app}
    for name, (group, summary, commands) in _FAMILIES.items():
        above, _, word = name.rpartition(" ")
        families[name] = App(word, help=summary, group=group, help_epilogue="")
        _add(families[name], commands, explained)
        families[above].command(families[name])
    return app


def _fill(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give a command that asks an engine what its context says."""
    if {it.name for it in arguments} >= {"--context", "--address"}:
        from progressor.cli.input import contexts  # noqa: PLC0415  # version and config need none

        contexts.fill(arguments)


def _add(
    app: App, commands: Sequence[_Command], explained: Collection[str] | None, **options: str
) -> None:
    for name, place, summary in commands:
        if explained is not None and name not in explained:
            options["help"] = summary
        # Only the help of `progressor` itself ends with the epilogue.
        app.command(f"{_ROOM}.{place}", name=name, help_epilogue="", **options)
        options.pop("help", None)


_COMMANDS = {
    "Engine": (
        ("serve", "engine.serve:serve", "Run an engine."),
        ("dev", "dev:dev", "Run an engine and an example on it."),
        ("migrate", "engine.migrate:migrate", "Migrate a database to this release's schema."),
        ("doctor", "doctor:doctor", "Check a database, and advise on what is wrong."),
        ("config", "engine.settings:show_config", "Print the configuration in force."),
        ("health", "engine.remote:health", "Check the health of an engine."),
        ("replicas", "engine.remote:replicas", "Print the replicas of an engine's database."),
        ("login", "engine.login:login", "Log in to an engine by OpenID Connect."),
        ("logout", "engine.login:logout", "Forget the tokens of a login."),
        ("console", "top.console:console", "Serve the web console of an engine."),
        ("top", "top.top:top", "Watch rates, queues, processors and replicas."),
        ("log-level", "engine.remote:log_level", "Change the log level of a replica."),
        ("example-processor", "dev:example_processor", "Run the example's processor."),
        ("version", "engine.settings:version", "Print the version."),
    ),
    "Processes": (
        ("start", "processes.processes:start", "Create a process."),
        ("call", "processes.processes:call", "Run a call on a process."),
        ("notify", "processes.processes:notify", "Send a call without waiting for its response."),
        ("repair", "processes.processes:repair", "Let the processor repair a broken process."),
        ("retry", "processes.processes:retry", "Run the task that broke a process again."),
        (
            "simple-repair",
            "processes.processes:simple_repair",
            "Repair a broken process without its processor.",
        ),
        ("await", "processes.processes:await_task", "Wait for a task."),
        ("cancel", "processes.processes:cancel", "Cancel a task."),
        ("result", "processes.processes:result", "Wait for a process to complete."),
        ("get", "processes.processes:get", "Print a process."),
        ("why", "processes.processes:why", "Explain what a process waits for."),
        ("trace", "processes.processes:trace", "Print the tasks of a process as a timeline."),
        (
            "list",
            "processes.processes:list_processes",
            "Print the processes of one namespace or all.",
        ),
        ("count", "processes.counts:count", "Count the processes of one namespace or all."),
        ("failures", "processes.failures:failures", "Print what has broken processes."),
        ("put", "processes.processes:put", "Import a process."),
        ("terminate", "processes.processes:terminate", "End a process, and keep its record."),
        ("remove", "processes.processes:remove", "Delete a process."),
    ),
}
_BULK_COMMANDS = (
    ("retry", "processes.bulk:retry", "Run the task that broke each process again."),
    ("simple-repair", "processes.bulk:simple_repair", "Repair each without its processor."),
    ("repair", "processes.bulk:repair", "Let the processor repair each."),
    ("notify", "processes.bulk:notify", "Send each a call without waiting for its response."),
    ("cancel", "processes.bulk:cancel", "Cancel the first task of each."),
    ("terminate", "processes.bulk:terminate", "End each, and keep its record."),
    ("remove", "processes.bulk:remove", "Delete each."),
    ("list", "processes.bulk:list_operations", "Print the operations."),
    ("show", "processes.bulk:show_operation", "Print an operation and its progress."),
    ("watch", "processes.bulk:watch", "Watch an operation until it ends."),
    ("stop", "processes.bulk:stop", "Stop an operation."),
    ("results", "processes.bulk:results", "Print the result for each process."),
)
_NAMESPACE_COMMANDS = (
    ("create", "namespaces.namespaces:create", "Create a namespace."),
    ("update", "namespaces.namespaces:update", "Change a namespace."),
    ("get", "namespaces.namespaces:get", "Print a namespace."),
    ("list", "namespaces.namespaces:list_namespaces", "Print all namespaces."),
    ("pause", "namespaces.namespaces:pause", "Pause namespaces: no step begins."),
    ("resume", "namespaces.namespaces:resume", "Resume paused namespaces."),
    ("delete", "namespaces.namespaces:delete", "Delete an empty namespace."),
    ("apply", "namespaces.apply:apply", "Create and change namespaces as a file describes them."),
    ("export", "namespaces.apply:export", "Print namespaces as a file that apply reads."),
)
_GATE_COMMANDS = (
    ("list", "gates:list_gates", "Print the gates of a namespace."),
    ("get", "gates:get", "Print a gate, its holders and its queue."),
    ("set", "gates:set_capacity", "Set the capacity of a gate."),
    ("delete", "gates:delete", "Delete an unused gate."),
)
_JOB_COMMANDS = (
    ("submit", "jobs.jobs:submit", "Submit a job from a file."),
    ("get", "jobs.jobs:get", "Print a job, its graph and its nodes."),
    ("list", "jobs.jobs:list_jobs", "Print the jobs of a namespace."),
    ("watch", "jobs.jobs:watch", "Watch a job until it ends."),
    ("retry", "jobs.jobs:retry", "Retry a failed job from its failed nodes."),
    ("cancel", "jobs.jobs:cancel", "Cancel a job."),
)
_SCHEDULE_COMMANDS = (
    ("create", "schedules.schedules:create", "Create a schedule."),
    ("update", "schedules.schedules:update", "Change a schedule."),
    ("get", "schedules.schedules:get", "Print a schedule and its runs."),
    ("list", "schedules.schedules:list_schedules", "Print the schedules of a namespace."),
    ("next", "schedules.schedules:print_next", "Print the next runs of a schedule."),
    ("pause", "schedules.schedules:pause", "Pause a schedule."),
    ("resume", "schedules.schedules:resume", "Resume a paused schedule."),
    ("trigger", "schedules.schedules:trigger", "Run a schedule now."),
    ("backfill", "schedules.schedules:backfill", "Run the instants of a past period."),
    ("delete", "schedules.schedules:delete", "Delete a schedule."),
)
_ACCESS_COMMANDS = (
    ("init", "engine.access:init", "Create the first administrator, in the database."),
    ("whoami", "engine.access:whoami", "Print who the engine takes you for."),
    ("why", "engine.access:why", "Say whether a request would be served."),
    ("grant", "engine.access:grant", "Give a role to a principal."),
    ("revoke", "engine.access:revoke", "Take a role back."),
    ("list", "engine.access:list_bindings", "Print who has which role."),
    ("apply", "engine.access_file:apply", "Give the roles that a file describes."),
    ("export", "engine.access_file:export", "Print the roles as a file that apply reads."),
)
_CONTEXT_COMMANDS = (
    ("add", "engine.contexts:add", "Add an engine under a name."),
    ("use", "engine.contexts:use", "Make a context the current one."),
    ("list", "engine.contexts:list_contexts", "Print the contexts."),
    ("show", "engine.contexts:show_context", "Print a context."),
    ("remove", "engine.contexts:remove", "Remove a context."),
)
_TOKEN_COMMANDS = (
    ("create", "engine.access:create_token", "Create an API token, and print it once."),
    ("list", "engine.access:list_tokens", "Print the API tokens."),
    ("revoke", "engine.access:revoke_token", "Revoke an API token."),
)

_AUDIT_COMMANDS = (
    ("list", "engine.audit:list_entries", "Print who has changed what, newest first."),
    ("follow", "engine.audit:follow", "Print entries as they are added."),
    ("head", "engine.audit:head", "Print the head of the chain."),
)

_BULK = (
    "Change all processes that match a filter: print how many match, ask, start, and watch until "
    "the end. Ctrl-C leaves the operation running."
)
_FAMILIES = {
    "access": ("Engine", "Control who may do what.", _ACCESS_COMMANDS),
    "audit": ("Engine", "Print who has changed what.", _AUDIT_COMMANDS),
    "access token": ("Tokens", "Create and revoke API tokens.", _TOKEN_COMMANDS),
    "context": ("Engine", "Name engines, and choose one.", _CONTEXT_COMMANDS),
    "bulk": ("Processes", _BULK, _BULK_COMMANDS),
    "namespace": ("Namespaces", "Create, change and print namespaces.", _NAMESPACE_COMMANDS),
    "gate": ("Namespaces", "Print and set gates, which limit concurrency.", _GATE_COMMANDS),
    "job": ("Jobs", "Submit, watch and retry jobs, graphs of processes.", _JOB_COMMANDS),
    "schedule": ("Jobs", "Create, print and control schedules.", _SCHEDULE_COMMANDS),
}
"""Commands of several words: their group and summary, and the last words."""


def _shown_default(value: object) -> str | None:
    """Return a default for the help; None if it is off or empty."""
    return None if value in (None, False, "", ()) else str(value)


def _asks_json(tokens: Sequence[str]) -> bool:
    """Return whether --json is given as an option, not as the value of another one."""
    arguments = _arguments(tokens)
    if arguments is None:
        return "--json" in itertools.takewhile(lambda it: it != "--", tokens)
    return any(
        getattr(value, "json", False) is True or (name == "json" and value is True)
        for name, value in arguments.items()
    )


def _arguments(tokens: Sequence[str]) -> Mapping[str, object] | None:
    """Return the arguments of a command's function; None if they are wrong."""
    try:
        _, bound, _ = build_app().parse_args(tokens, exit_on_error=False, print_error=False)
    except (CycloptsError, errors.ProgressorError):
        return None
    return bound.arguments


def _reported(error: errors.ProgressorError, tokens: Sequence[str]) -> ExitCode:
    as_json = _asks_json(tokens)
    code = report(_in_typed_words(error, tokens), as_json=as_json)
    if isinstance(error, errors.NamespaceNotFoundError) and not as_json:
        ends = (getattr(it, "again", "") for it in (_arguments(tokens) or {}).values())
        sys.stderr.write(f"  to list those that exist: progressor namespace list{''.join(ends)}\n")
    return code


def _in_typed_words(error: errors.ProgressorError, tokens: Sequence[str]) -> errors.ProgressorError:
    """Return an error that names the options and arguments of the command, not fields."""
    command = build_app().parse_commands(tokens)[1][-1]
    if not isinstance(error, errors.InvalidRequestError) or command.default_command is None:
        return error
    from progressor.cli.input.fields import as_typed  # noqa: PLC0415  # only errors need it

    names = {name for it in command.assemble_argument_collection() for name in it.names}
    return as_typed(error, names - {"--timeout", "--address"})


def _check_text(tokens: Sequence[str]) -> None:
    """Refuse arguments that are not UTF-8, which cannot be sent."""
    for position, token in enumerate(tokens, start=1):
        try:
            token.encode()
        except UnicodeEncodeError as error:
            raise errors.InvalidRequestError(
                errors.FieldViolation(f"argument {position}", f"{token!r} is not UTF-8")
            ) from error
