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
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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


@app.command("run")
def _run(context: typer.Context, env_file: EnvFile = None) -> None:
    """Consume until stopped, or to the end of a bounded run."""
    from connector.cli.run import run

    raise typer.Exit(run(env_file or context.obj))


@app.command("demo")
def _demo(
    records: Annotated[int, typer.Option(min=1_000, max=500_000, help="How many records to produce.")] = 200_000,
    directory: Annotated[
        Path | None, typer.Option(help="Where the data goes, and stays. Default: sluiceway-demo in the current folder.")
    ] = None,
) -> None:
    """See it work: an embedded broker, real copies of `connector run`, live rebalances. About 15 seconds."""
    from connector.cli.demo import demo

    raise typer.Exit(demo(records=records, directory=directory))


@app.command("check")
def _check(context: typer.Context, env_file: EnvFile = None) -> None:
    """Check the configuration offline; show what is in effect and where it came from."""
    from connector.cli.check import check

    check(env_file or context.obj)


@app.command("config")
def _config(
    context: typer.Context,
    env_file: EnvFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with where each value came from.")] = False,
) -> None:
    """Print the settings in effect as NAME=value lines, secrets masked."""
    from connector.cli.check import print_configuration

    print_configuration(env_file or context.obj, as_json=as_json)


@app.command("sinks")
def _sinks() -> None:
    """List the installed sinks and their settings."""
    from connector.cli.sinks import list_sinks

    list_sinks()


@app.command("new-sink")
def _new_sink(
    name: Annotated[str, typer.Argument(help="Name of the sink, as in CONNECTOR_SINK: lower case, hyphens.")],
    directory: Annotated[
        Path | None, typer.Option(help="Folder to make. Default: sluiceway-sink-NAME in the current folder.")
    ] = None,
) -> None:
    """Write a package with a new sink: settings, tests and all, ready to install."""
    from connector.cli.new_sink import new_sink

    try:
        folder = new_sink(name, directory)
    except (ValueError, OSError) as error:
        print(f"connector: {error}", file=sys.stderr)
        raise typer.Exit(ExitCode.CONFIGURATION) from None
    print(f"Made {folder}. Next: cd {folder} && pip install -e '.[dev]' && pytest")
