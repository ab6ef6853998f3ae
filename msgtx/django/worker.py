"""Workers as management commands: each of their transactions is one `atomic()`, with the offsets of its records."""

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from django.core.management.base import BaseCommand, CommandParser
from django.db import close_old_connections, connections, transaction

from msgtx import errors
from msgtx.django.database import alias, client

log = logging.getLogger("msgtx.process")


class WorkerCommand(BaseCommand):  # type: ignore[misc]  # Django has no types
    """A management command that consumes topics: exactly once, whatever crashes or raises.

    A subclass names `topics` and `group`, and has a method `handle_record`. `settings`: of `Client.process_into`, such as
    `{"failure": DeadLetter("orders-dead")}`; with `"batch": True` the method gets a list of records. Each transaction is
    one `atomic()` with the rows of many records and their offsets; functions of `transaction.on_commit` run after it. The
    command ends at SIGTERM, after the transaction that is under way.
    """

    help = "Consume topics of msgtx."
    topics: ClassVar[Sequence[str]] = ()
    group: ClassVar[str] = ""
    settings: ClassVar[Mapping[str, Any]] = {}
    using: ClassVar[str | None] = None

    def handle_record(self, record: Any) -> object:
        """Write the rows of one record. What it raises is treated as `settings["failure"]` says."""
        raise NotImplementedError("a WorkerCommand has a method handle_record(record)")

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--idle-timeout`."""
        parser.add_argument("--idle-timeout", help="end when nothing has come for so long, such as 10s; default: never")

    def handle(self, *_: Any, idle_timeout: str | None = None, **__: Any) -> None:
        """Run the worker to its end."""
        name = self.using or alias()
        with client(name) as opened:
            opened.process_into(
                lambda: Atomic(name),
                lambda _, record: self.handle_record(record),
                *self.topics,
                group=self.group,
                **{"idle_timeout": idle_timeout, **self.settings},
            )


class Atomic:
    """An outermost `atomic()` as a session of a worker. It is committed by `commit`, else rolled back."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._atomic = transaction.atomic(using=using, durable=True)
        self._open = self._committed = False

    @property
    def connection(self) -> Any:
        """The driver's connection."""
        return connections[self._using].connection

    @property
    def in_atomic_block(self) -> bool:
        """Whether it is open."""
        return self._open

    def ensure_connection(self) -> None:
        """Connect, unless it is connected."""
        connections[self._using].ensure_connection()

    def __enter__(self) -> Self:
        """Begin, on a connection that is good."""
        close_old_connections()
        self._atomic.__enter__()
        self._open = True
        transaction.on_commit(self._note, using=self._using)  # the first one of all
        return self

    def _note(self) -> None:
        self._committed = True

    def commit(self) -> None:
        """Commit, then run the functions of `on_commit`. What they raise is logged: the rows are committed."""
        if connections[self._using].needs_rollback:
            raise errors.IllegalState(
                "an error was caught within atomic(), which marks that for a rollback: catch it outside of another atomic()",
                reason="rolled back",
            )
        self._open = False
        try:
            self._atomic.__exit__(None, None, None)
        except Exception:
            if not self._committed:
                raise
            log.exception("a function of transaction.on_commit failed; the rows and the offsets are committed")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Roll back, unless it was committed."""
        if self._open:
            self._open = False
            self._atomic.__exit__(kind or errors.IllegalState, error or errors.IllegalState("not committed"), traceback)
