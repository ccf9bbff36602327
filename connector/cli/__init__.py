"""The command `connector`. Each command's code is imported when it is called, so that `connector --help` is quick."""

# ruff: noqa: PLC0415  # an import inside a command is the point of this file

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from connector.api.errors import ConfigError, ExitCode, FatalError

if TYPE_CHECKING:
    from collections.abc import Sequence

EnvFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--env-file", metavar="PATH", help="File of NAME=value lines; the environment wins over it."),
]

app = typer.Typer(
    name="connector",
    help="Moves records from a Kafka consumer group into sinks. Configured by CONNECTOR_* environment variables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _examples(*lines: str) -> str:
    """Return the end of a command's help. The backspace keeps the lines as they are."""
    return "\n".join(("\b", "Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code; an error that the user can mend is a few plain lines, no traceback."""
    try:
        app(args=arguments, prog_name="connector")
    except ConfigError as error:
        problems = str(error).splitlines()
        noun = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        print(f"connector: {noun} in the configuration", *problems, sep="\n  - ", file=sys.stderr)
        sys.exit(error.exit_code)
    except FatalError as error:
        print(f"connector: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception:  # noqa: BLE001 - whatever it is, it has its own exit code
        traceback.print_exc()
        print("connector: this is a bug in Sluiceway; please report it with the lines above.", file=sys.stderr)
        sys.exit(ExitCode.BUG)


def _show_version(wanted: bool) -> None:
    if wanted:
        from connector import __version__

        print(f"sluiceway {__version__}")
        raise typer.Exit


dlq = typer.Typer(help="Dead letters: look at them, send them back.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(dlq, name="dlq")

offsets = typer.Typer(help="Positions of the group: show them, set them.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(offsets, name="offsets")

DlqTopic: TypeAlias = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC", help="The dead letter topic. Default: CONNECTOR_DLQ_TOPIC.")
]
ErrorClass: TypeAlias = Annotated[str | None, typer.Option(metavar="CLASS", help="Only letters of this error class.")]
Origin: TypeAlias = Annotated[str | None, typer.Option(metavar="TOPIC", help="Only letters of records of this topic.")]
Since: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only what died then or later: an ISO time, or 30m, 7d ago.")
]
Until: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only what died before: an ISO time, or how long ago.")
]


@app.callback()
def _common(
    context: typer.Context,
    env_file: EnvFile = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that stand before the command."""
    context.obj = env_file


@app.command(
    "run",
    epilog=_examples(
        "connector run",
        "connector run --env-file prod.env",
        "CONNECTOR_STOP=end connector run     # to the end of the topics, then exit 0",
    ),
)
def _run(context: typer.Context, env_file: EnvFile = None) -> None:
    """Consume until stopped, or to the end of a bounded run."""
    from connector.cli.run import run

    raise typer.Exit(run(env_file or context.obj))


@app.command("demo", epilog=_examples("connector demo", "connector demo --records 20000 --directory /tmp/demo"))
def _demo(
    records: Annotated[
        int, typer.Option(min=1_000, max=500_000, metavar="N", help="How many records to produce.")
    ] = 200_000,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Where the data goes, and stays. Default: sluiceway-demo in the current folder."
        ),
    ] = None,
) -> None:
    """See it work: real copies and live rebalances, in 15 seconds.

    On a broker inside the command, so that nothing else is needed.
    """
    from connector.cli.demo import demo

    raise typer.Exit(demo(records=records, directory=directory))


@app.command("check", epilog=_examples("connector check --env-file prod.env"))
def _check(context: typer.Context, env_file: EnvFile = None) -> None:
    """Check the configuration, offline, and show what is in effect.

    With where each value came from; of what is wrong, everything at once.
    """
    from connector.cli.check import check

    check(env_file or context.obj)


@app.command("config", epilog=_examples("connector config > effective.env", "connector config --json"))
def _config(
    context: typer.Context,
    env_file: EnvFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with where each value came from.")] = False,
) -> None:
    """Print the settings in effect for other programs.

    As NAME=value lines or JSON, secrets masked.
    """
    from connector.cli.check import print_configuration

    print_configuration(env_file or context.obj, as_json=as_json)


@app.command("sinks", epilog=_examples("connector sinks", "CONNECTOR_PLUGIN_DIR=plugins connector sinks"))
def _sinks(context: typer.Context, env_file: EnvFile = None) -> None:
    """List the installed sinks and transforms and their settings."""
    from connector.cli.sinks import list_sinks

    list_sinks(env_file or context.obj)


@app.command(
    "healthcheck",
    epilog=_examples(
        "connector healthcheck",
        "connector healthcheck --ready --env-file prod.env",
        "connector healthcheck --url http://10.0.0.7:9464",
    ),
)
def _healthcheck(
    context: typer.Context,
    env_file: EnvFile = None,
    *,
    ready: Annotated[bool, typer.Option("--ready", help="Whether it consumes (/readyz), not only lives.")] = False,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask there instead of at CONNECTOR_ADMIN_ADDRESS.")
    ] = None,
) -> None:
    """Ask a running connector whether it lives: exit 0 or 1.

    Needs no setting but CONNECTOR_ADMIN_ADDRESS; waits for 3 seconds at most.
    """
    from connector.cli.healthcheck import healthcheck

    raise typer.Exit(0 if healthcheck(env_file or context.obj, is_ready_wanted=ready, url=url) else 1)


@offsets.command(
    "show",
    epilog=_examples(
        "connector offsets show",
        "connector offsets show --json > positions.json     # a backup",
    ),
)
def _offsets_show(
    context: typer.Context,
    env_file: EnvFile = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with the members of the group.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV, a line for each partition.")] = False,
) -> None:
    """Show where the group stands; changes nothing.

    In the topics of CONNECTOR_TOPICS, and others in which it has positions. A
    sink that holds positions is asked for them too.
    """
    from connector.cli.offsets import Form, show

    show(env_file or context.obj, Form.JSON if as_json else Form.CSV if as_csv else Form.TABLE)


@offsets.command(
    "reset",
    epilog=_examples(
        "connector offsets reset --to 2026-01-31T08:00:00Z",
        "connector offsets reset --to earliest --topic orders --partition 3 --execute",
        "connector offsets reset --from-file positions.json --execute",
    ),
)
def _offsets_reset(
    context: typer.Context,
    env_file: EnvFile = None,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="earliest, latest, an ISO time, or an offset.",
            autocompletion=lambda: ["earliest", "latest"],
        ),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="What `show --json` or `--csv` has written.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only this topic. May be given again.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option(metavar="N", min=0, help="Only this partition. May be given again.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Otherwise it is only shown.")] = False,
) -> None:
    """Set positions of the group, and of a sink that holds them.

    Shows from where to where, and how many offsets are skipped or repeated.
    Refused while the group has members.
    """
    from connector.cli.offsets import Choice, reset
    from connector.offsets.plan import Scope

    choice = Choice(to, from_file, Scope(frozenset(topic or ()), frozenset(partition or ())))
    reset(env_file or context.obj, choice, is_executed=execute)


@dlq.command(
    "show",
    epilog=_examples(
        "connector dlq show --since 1h", "connector dlq show --origin orders --error-class PoisonError --json"
    ),
)
def _dlq_show(
    context: typer.Context,
    env_file: EnvFile = None,
    *,
    topic: DlqTopic = None,
    error_class: ErrorClass = None,
    origin: Origin = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show so many at most, the oldest.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with the whole record.")] = False,
) -> None:
    """Show dead letters; changes nothing."""
    from connector.cli.dlq import Choice, show

    choice = Choice(topic, error_class, origin, since, until)
    show(env_file or context.obj, choice, limit=limit, as_json=as_json)


@dlq.command(
    "replay", epilog=_examples("connector dlq replay --dry-run", "connector dlq replay --origin orders --limit 100")
)
def _dlq_replay(
    context: typer.Context,
    env_file: EnvFile = None,
    *,
    topic: DlqTopic = None,
    to: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Topic to send to. Default: the one each record came from.")
    ] = None,
    error_class: ErrorClass = None,
    origin: Origin = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Send so many at most.")] = None,
    max_replays: Annotated[
        int, typer.Option(min=1, metavar="N", help="Pass over what was replayed so often already.")
    ] = 5,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Not from where the last replay ended, but from the oldest letter.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
) -> None:
    """Send dead letters back, each as it was.

    Goes on where the last replay ended.
    """
    from connector.cli.dlq import Choice, send_back

    send_back(
        env_file or context.obj,
        Choice(topic, error_class, origin, since, until),
        target=to,
        limit=limit,
        max_replays=max_replays,
        from_beginning=from_beginning,
        dry_run=dry_run,
    )


@app.command(
    "new-sink",
    epilog=_examples("connector new-sink clickhouse", "connector new-sink clickhouse --directory sinks/clickhouse"),
)
def _new_sink(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the sink, as in CONNECTOR_SINK: lower case, hyphens.")
    ],
    directory: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Folder to make. Default: sluiceway-sink-NAME in the current folder."),
    ] = None,
) -> None:
    """Write the package of a new sink, ready to install.

    With settings, tests and all.
    """
    from connector.cli.new_sink import new_sink

    try:
        folder = new_sink(name, directory)
    except (ValueError, OSError) as error:
        print(f"connector: {error}", file=sys.stderr)
        raise typer.Exit(ExitCode.CONFIGURATION) from None
    print(f"Made {folder}. Next: cd {folder} && pip install -e '.[dev]' && pytest")
