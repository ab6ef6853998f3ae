"""`msgtx console`."""

import logging
import socket
from typing import Final

import click

from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.failure import CommandFailed
from msgtx.cli.terminal.interruption import deferred, stopping
from msgtx.cli.terminal.invocation import Command, Invocation, option, pass_invocation

STREAMS_SECONDS: Final = 1  # that an end waits for pages with live updates


@click.command(
    "console",
    cls=Command,
    examples=(
        "msgtx console",
        "msgtx console --no-sign-in",
        "msgtx console --trust-header X-Forwarded-User --allow-host console.example.com",
    ),
)
@option("--host", default="127.0.0.1", help="The address to answer at.")
@option("--port", type=click.IntRange(0, 65535), default=8123, help="The port; 0: any free one.")
@option(
    "--no-sign-in",
    is_flag=True,
    allow_from_autoenv=False,
    help="Everybody on this machine sees what the role of --url may see. Only with a --host of this machine.",
)
@option(
    "--trust-header",
    metavar="NAME",
    help="A proxy signs people in and sends their name in this header. They see what the role of --url may see.",
)
@option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="ADDRESS",
    help="The address or network of a proxy in front, whose X-Forwarded-Proto and X-Forwarded-For count; may be repeated."
    "  [default: this machine, for --trust-header and X-Forwarded-Proto]",
)
@option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which browsers reach the console, besides localhost and addresses; may be repeated.",
)
@option(
    "--allow-changes",
    is_flag=True,
    allow_from_autoenv=False,
    help="Pages offer to abort, complete, reset, redrive and delete, as far as the role may; each shows a preview first.",
)
@pass_invocation
def command(
    invocation: Invocation,
    *,
    host: str,
    port: int,
    no_sign_in: bool,
    trust_header: str | None,
    trusted_proxies: tuple[str, ...],
    hosts: tuple[str, ...],
    allow_changes: bool,
) -> int:
    """Serve pages about records, transactions and groups, until SIGTERM or Ctrl-C.

    People sign in with a PostgreSQL role and its password, which the server checks by SCRAM, and see what that role may see
    (`msgtx db grant`). Without --allow-changes the console changes nothing.
    """
    try:
        with deferred():
            import uvicorn

            from msgtx import console
            from msgtx.console.guard import is_loopback
            from msgtx.console.serving import ConsoleServer
    except ImportError as error:
        raise CommandFailed(f"the console needs {error.name}: pip install 'msgtx[console]'") from error
    if no_sign_in and trust_header is not None:
        raise click.UsageError("--no-sign-in and --trust-header exclude each other")
    if no_sign_in and not is_loopback(host):
        raise click.UsageError(f"--no-sign-in with --host {host} would let anybody in")
    if not is_loopback(host):
        click.echo("msgtx: passwords and records travel without TLS: put a proxy with TLS in front", err=True)
    logging.getLogger("msgtx.console").setLevel(logging.INFO)
    with connect(invocation) as client:
        app = console.app(
            client,
            sign_in=not no_sign_in,
            trust_header=trust_header,
            trusted_proxies=trusted_proxies,
            hosts=hosts,
            allow_changes=allow_changes,
        )
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            proxy_headers=False,  # an address that a header names is nobody's
            server_header=False,
            timeout_graceful_shutdown=STREAMS_SECONDS,
        )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family) as listening, stopping() as stop:
            shown = f"[{host}]" if ":" in host else host
            click.echo(f"console at http://{shown}:{listening.getsockname()[1]}/", err=True)
            if not stop.is_set():
                ConsoleServer(config, app).run(sockets=[listening])  # it hears signals, ends, and passes them on
            return stop.exit_code
