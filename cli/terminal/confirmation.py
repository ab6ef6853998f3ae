"""The question before something is destroyed: `--dry-run` and `--yes`."""

import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from msgtx.changes import Fields, Preview, apply, perform
from msgtx.cli.terminal.invocation import option

if TYPE_CHECKING:
    from msgtx.client import Client

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def destructive(verb: Decorated) -> Decorated:
    """Give a verb that destroys something `--dry-run` and `--yes`; see `confirmed`."""
    # Not from the environment: a variable that was forgotten would disarm the question.
    verb = option("--yes", "-y", is_flag=True, allow_from_autoenv=False, help="Do not ask for confirmation.")(verb)
    return option("--dry-run", is_flag=True, help="Only show what would be done.")(verb)


def confirmed(what: str, *, dry_run: bool, yes: bool) -> bool:
    """Return whether to do it: not with `--dry-run`; else yes, or ask. Raise `Abort` if the answer is no."""
    if dry_run:
        click.echo(f"would {what}", err=True)
        return False
    with contextlib.redirect_stdout(sys.stderr):  # click below 8.3 writes a space to stdout, with any `err`
        try:
            return yes or click.confirm(f"{what}?", err=True, abort=True)
        except click.Abort as refused:
            if isinstance(refused.__context__, KeyboardInterrupt):  # click takes it for an answer
                raise refused.__context__ from None
            raise


def carry_out_each(client: "Client", asked: Iterable[Preview], *, dry_run: bool, yes: bool) -> None:
    """Make those changes that are confirmed, when all are asked: an answer of no changes nothing."""
    for each in [one for one in asked if confirmed(one.says, dry_run=dry_run, yes=yes)]:
        carry_out(client, each, yes=yes)


def carry_out(client: "Client", asked: Preview, *, yes: bool) -> Fields | None:
    """Make a change. If somebody has confirmed its preview, that must not be outdated; see `apply`."""
    return perform(client, asked.verb, asked.arguments) if yes else apply(client, asked)
