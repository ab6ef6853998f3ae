"""`msgtx search`: from a text to the places where somebody may want to go."""

import click

from msgtx import units
from msgtx.cli.commands.find import block
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.failure import FAILED
from msgtx.cli.terminal.interruption import stopping
from msgtx.cli.terminal.invocation import Command, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_one, show_table, write
from msgtx.cli.terminal.progress import progress
from msgtx.cli.terminal.quantities import milliseconds
from msgtx.rows import search_row
from msgtx.types import SearchHit


@click.command(
    "search",
    cls=Command,
    examples=(
        "msgtx search orders/0/4711",
        "msgtx search 7.3.12",
        "msgtx search billing",
        "msgtx search 536365 --since 7d -o json",
    ),
)
@click.argument("text")
@option("--since", type=milliseconds(), default="1d", help="How long ago a record may have been stored: ms, or 1h, 7d.")
@option("--limit", type=click.IntRange(1, 100), default=10, help="The most records, the last stored ones.")
@option("--contents/--no-contents", default=True, help="Whether to look for the text in keys and values of records.")
@pass_invocation
def command(invocation: Invocation, text: str, *, since: int, limit: int, contents: bool) -> int:
    """Find what TEXT may mean: a place, a transaction, a name, a key, or words in a JSON value.

    A place is written as in messages: orders/0/4711, orders-0@4711. Names are of transactional ids, topics, groups, share
    groups and snapshots, whole or their beginning. Records are looked for in all topics that the role may consume. Ctrl-C
    ends the search and shows what was found. The exit code is 1 if nothing was found.
    """
    with connect(invocation) as client, stopping() as stop:
        with progress(f"looking for {text}") as told:
            found = client.search(
                text,
                since=f"{since}ms",
                limit=limit,
                contents=contents,
                stop=stop,
                progress=lambda count: told(count, f"{count} found"),
            )
        if invocation.format == "table":
            _show(found.hits)
            if not found.hits and not stop.is_set():
                click.echo(f"nothing is named {text!r}" + _where(since) * contents, err=True)
                _show(found.similar)
        else:
            show_one(invocation.format, search_row(found))
        if not found.is_complete:
            click.echo("the search for records did not come to its end: a topic can be searched with `msgtx find`", err=True)
        if stop.is_set():
            return stop.exit_code
        return 0 if found.hits else FAILED


def _where(since: int) -> str:
    return f", and no record of the last {units.lasting(since / 1_000)} holds it; --since looks further back"


def _show(hits: list[SearchHit]) -> None:
    named = [(hit.kind, hit.name, hit.text) for hit in hits if hit.record is None]
    if named:
        show_table(("kind", "name", "what it is"), named)
    write("".join(("\n" if named else "") + block(hit.record) for hit in hits if hit.record is not None))
