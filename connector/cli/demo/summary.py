"""What a demo says at the end: the verdict, each rebalance, where the data lies, and what to try next."""

from __future__ import annotations

import shlex
import shutil
import sys
from typing import TYPE_CHECKING

from connector.cli.demo.display import duration, fold_lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector.cli.demo.copies import Happening
    from connector.cli.demo.folder import Folder
    from connector.cli.demo.tally import PartitionTally


def print_verdict(partitions: Sequence[PartitionTally], *, flow_seconds: float, total_seconds: float) -> bool:
    """Print what became of the records; true if each was written once and the group's position says so."""
    produced = sum(each.end for each in partitions)
    delivered = sum(each.distinct for each in partitions)
    wrong = [each for each in partitions if each.lost or each.duplicated or each.lag]
    print(
        f"\ndelivered   {delivered:,} of {produced:,} records",
        f"lost        {sum(each.lost for each in partitions):,}",
        f"duplicated  {sum(each.duplicated for each in partitions):,}",
        f"lag         {sum(each.lag for each in partitions):,} (what the group has not committed)",
        f"rate        {delivered / flow_seconds:,.0f} records/s over {flow_seconds:.1f} s; the demo paces its producer",
        f"took        {total_seconds:.1f} s",
        sep="\n",
    )
    for each in wrong:
        print(
            f"  {each.topic}[{each.partition}]: {each.end:,} produced, {each.lost:,} lost, {each.duplicated:,} "
            f"duplicated, committed up to {each.committed:,}"
        )
    return not wrong


def print_rebalances(happenings: Sequence[Happening], began: float) -> None:
    """Print what the copies logged of each rebalance. `began` is a Unix time."""
    print("\nRebalances: before a partition moves, its records are drained to the sink and its position is committed.")
    for each in sorted(happenings, key=lambda each: each.at):
        line = f"  {each.at - began:5.1f} s  copy {each.copy} {each.what:<7}  {fold_lanes(each.lanes)}"
        print(f"{line:<61}  {duration(each)}".rstrip())


def print_next_steps(folder: Folder) -> None:
    """Print where the data lies and what to try next."""
    command = _command()
    database, settings = shlex.quote(str(folder.database)), shlex.quote(str(folder.settings))
    query = "SELECT json_extract(value, '$.city'), count(*) FROM records WHERE topic = 'orders' GROUP BY 1"
    print(
        "\nWhere the data lies (it stays until the next demo)",
        f"  {folder.database}    table records, without a primary key: a repeat would be a row of its own",
        f"  {folder.path / 'copy-*.log'}    what each copy logged",
        f"  {folder.settings}  what the copies were configured with",
        "\nWhat to try next",
        f'  sqlite3 {database} "{query}"',
        f"  {command} check --env-file {settings}",
        f"  {command} sinks",
        "  a cluster of yours, to standard output:",
        f"  CONNECTOR_BOOTSTRAP_SERVERS=host:9092 CONNECTOR_GROUP_ID=first-look CONNECTOR_TOPICS=a-topic {command} run",
        sep="\n",
    )


def _command() -> str:
    """Return how the user calls this command."""
    called = sys.argv[0]
    if called == shutil.which("connector"):
        return "connector"
    return f"{sys.executable} -m connector" if called.endswith("__main__.py") else called
