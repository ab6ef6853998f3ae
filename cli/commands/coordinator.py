"""`msgtx coordinator`: the daemon; shards and their owners."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import click

from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.interruption import deferred, stopping
from msgtx.cli.terminal.invocation import Group, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many, show_one
from msgtx.rows import row_of


@click.group("coordinator", cls=Group)
def command() -> None:
    """Run the sweeping daemon, and show the leader of each shard."""


@command.command("run")
@option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Answer /metrics, /healthz and /readyz at this port (0: any free one).",
)
@option("--metrics-host", default="127.0.0.1", help="The address to answer at.")
@option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Log each thing done as a line of text, or as a JSON object.",
)
@pass_invocation
def run(invocation: Invocation, *, metrics_port: int | None, metrics_host: str, log_format: str) -> int:
    """Lease shards and sweep them, once per sweep_interval_ms, until SIGTERM or Ctrl-C.

    Several daemons divide the shards among themselves; when one dies, the
    others take over its shards within lease_ms. Without a daemon, nothing
    stops: clients decide transactions and write markers themselves, and
    `msgtx sweep` does the same work from cron.
    """
    with deferred():
        from msgtx.coordinator.daemon import Daemon
        from msgtx.coordinator.metrics import DaemonMetrics
    _log(log_format)
    metrics = DaemonMetrics()
    endpoint = None if metrics_port is None else metrics.serve(metrics_host, metrics_port)
    try:
        with connect(invocation) as client, stopping() as stop:
            if endpoint is not None:
                metrics.watch(client.runtime.engine)
                address = f"http://{metrics_host}:{endpoint.port}/metrics"
                logging.getLogger("msgtx.coordinator").info("metrics at %s", address, extra={"event": "metrics"})
            Daemon(client.runtime.engine, observer=metrics).run(stop)
            return stop.exit_code
    finally:
        if endpoint is not None:
            endpoint.close()


@command.command("list")
@pass_invocation
def list_(invocation: Invocation) -> None:
    """List the coordinators with their shards, and the shards that nobody leads."""
    with deferred():
        from msgtx.store.sweeps.coordinators import ranges
    with connect(invocation) as client:
        shards = client.admin.coordinators()
    rows: list[dict[str, Any]] = []
    for owner in sorted({shard.owner for shard in shards}, key=lambda number: (number is None, number)):
        own = [shard for shard in shards if shard.owner == owner]
        numbers = [shard.shard for shard in own]
        rows.append(
            {
                "owner": owner,
                "host": own[0].host,
                "process": own[0].process,
                "started_at": own[0].started_at and own[0].started_at.astimezone(UTC).isoformat(timespec="seconds"),
                "lease_until": own[0].lease_until and own[0].lease_until.astimezone(UTC).isoformat(timespec="milliseconds"),
                "shards": ranges(numbers) if invocation.format == "table" else {s.shard: s.epoch for s in own},
            }
        )
    show_many(invocation.format, rows, ("owner", "host", "process", "started_at", "lease_until", "shards"))


@command.command("find")
@click.argument("transactional_id")
@pass_invocation
def find(invocation: Invocation, transactional_id: str) -> None:
    """Show the shard of a transactional id and the coordinator that leads it."""
    with connect(invocation) as client:
        row = row_of(client.admin.find_coordinator(transactional_id))
    until = datetime.fromtimestamp(row["lease_until"] / 1000, UTC)
    show_one(invocation.format, row | {"lease_until": until.isoformat(timespec="milliseconds")})


class _Lines(logging.Formatter):
    """A line per thing done, as text or as a JSON object; times are UTC."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message = " ".join(record.getMessage().split("\n"))
        if not self._as_json:
            return f"{time} {record.levelname.lower()} {message}"
        known = ("event", "count", "shards", "coordinator_id")
        more = {name: getattr(record, name) for name in known if hasattr(record, name)}
        return json.dumps({"time": time, "level": record.levelname.lower(), **more, "message": message})


def _log(log_format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(as_json=log_format == "json"))
    logger = logging.getLogger("msgtx")
    logger.addHandler(handler)
    logger.propagate = False
    if logger.level == logging.NOTSET or logger.level > logging.INFO:
        logger.setLevel(logging.INFO)
