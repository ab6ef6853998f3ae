"""Names from the database for a shell that completes a command line."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from msgtx.client import Client


def _complete(
    ask: "Callable[[Client], list[str]]",
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from msgtx import client, errors
        from msgtx.database import embedded

        try:
            if not os.environ.get("MSGTX_DATABASE_URL") and embedded.status() is None:
                return []  # none is started for this
            os.environ.setdefault("MSGTX_EMBEDDED", "quiet")
            with client.connect() as connected:
                return [name for name in ask(connected) if name.startswith(incomplete)]
        except errors.MsgtxError:
            return []  # a shell has no place for it

    return complete


topics = _complete(lambda client: client.topics.list())
groups = _complete(lambda client: [listed.group for listed in client.admin.groups.list()])
mirrors = _complete(lambda client: [listed.name for listed in client.admin.mirrors.list()])
shares = _complete(lambda client: [listed.group for listed in client.admin.shares.list()])
