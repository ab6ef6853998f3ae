"""`msgtx metrics`."""

import contextlib
import time
from http import HTTPStatus
from typing import Final

import click

from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.interruption import deferred, stopping
from msgtx.cli.terminal.invocation import Command, Invocation, option, pass_invocation

LOOK_SECONDS: Final = 0.2  # between two looks for a signal


@click.command(
    "metrics",
    cls=Command,
    examples=("msgtx metrics | grep lag", "msgtx metrics --port 9464"),
)
@option("--port", type=click.IntRange(0, 65535), help="Answer /metrics and /healthz at this port until SIGTERM or Ctrl-C.")
@option("--host", default="127.0.0.1", help="The address to answer at.")
@pass_invocation
def command(invocation: Invocation, *, port: int | None, host: str) -> int:
    """Show the contents of the database as metrics for Prometheus, without a coordinator.

    The figures are those of `msgtx coordinator run --metrics-port`, without the coordinator's own work. The right to observe
    every topic is enough.
    """
    with deferred():
        from msgtx.coordinator.endpoint import Endpoint, exposition, plain
        from msgtx.coordinator.metrics import DatabaseFigures
        from msgtx.store.operator.server import describe_server
    with connect(invocation) as client:
        with client.runtime.engine.connection() as connection:
            describe_server(connection)  # without the right, the reason is told at once
        figures = DatabaseFigures(client.runtime.engine)
        if port is None:
            click.echo(figures.text(), nl=False)
            return 0
        pages = {
            "/metrics": lambda: exposition(figures.text()),
            "/healthz": lambda: plain(HTTPStatus.OK, "alive"),
        }
        with contextlib.closing(Endpoint(host, port, pages)) as endpoint, stopping() as stop:
            click.echo(f"metrics at http://{host}:{endpoint.port}/metrics", err=True)
            while not stop.is_set():
                time.sleep(LOOK_SECONDS)
            return stop.exit_code
