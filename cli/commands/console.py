"""`msgtx console`."""

import logging
import os
import socket
from typing import TYPE_CHECKING, Any, Final

import click

from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.failure import CommandFailed
from msgtx.cli.terminal.interruption import deferred, stopping
from msgtx.cli.terminal.invocation import Command, Invocation, option, pass_invocation

if TYPE_CHECKING:
    from msgtx.client import Client

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
    if no_sign_in and trust_header is not None:
        raise click.UsageError("--no-sign-in and --trust-header exclude each other")
    require_console()
    with deferred():
        from msgtx.console.guard import is_loopback
    if no_sign_in and not is_loopback(host):
        raise click.UsageError(f"--no-sign-in with --host {host} would let anybody in")
    if not is_loopback(host):
        click.echo("msgtx: passwords and records travel without TLS: put a proxy with TLS in front", err=True)
    with connect(invocation) as client, listen(host, port) as listening:
        click.echo(f"console at {address_of(listening)}", err=True)
        settings: dict[str, Any] = {
            "sign_in": not no_sign_in,
            "trust_header": trust_header,
            "trusted_proxies": trusted_proxies,
            "hosts": hosts,
            "allow_changes": allow_changes,
        }
        return serve(client, listening, **settings)


def require_console() -> None:
    """Raise `CommandFailed` without the packages of the console."""
    try:
        with deferred():
            import uvicorn  # noqa: F401 - only whether it is there

            from msgtx import console  # noqa: F401
    except ImportError as error:
        raise CommandFailed(f"the console needs {error.name}: pip install 'msgtx[console]'") from error


def listen(host: str, port: int) -> socket.socket:
    """Take an address, which `serve` answers at. Raise `CommandFailed` if another program has it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise CommandFailed(f"{host} port {port} cannot be used ({reason}): --port names another one") from error


def address_of(listening: socket.socket) -> str:
    """Return the address of the first page."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def serve(client: "Client", listening: socket.socket, **settings: Any) -> int:
    """Serve the console of a client's database until SIGTERM or Ctrl-C. Returns the exit code."""
    with deferred():
        import uvicorn

        from msgtx import console
        from msgtx.console.serving import ConsoleServer
    logging.getLogger("msgtx.console").setLevel(logging.INFO)
    app = console.app(client, **settings)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # an address that a header names is nobody's
        server_header=False,
        timeout_graceful_shutdown=STREAMS_SECONDS,
    )
    with stopping() as stop:
        if not stop.is_set():
            ConsoleServer(config, app).run(sockets=[listening])  # it hears signals, ends, and passes them on
        return stop.exit_code
