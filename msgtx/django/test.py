"""A test case for code that publishes and for workers: the test database gets msgtx's schema."""

from collections.abc import Sequence
from typing import Any, ClassVar

from django.core.management import call_command
from django.test import TransactionTestCase

from msgtx.django.database import alias, client
from msgtx.django.worker import WorkerCommand
from msgtx.types import Record


class MsgtxTestCase(TransactionTestCase):  # type: ignore[misc]  # Django has no types
    """A `TransactionTestCase`, since a message is there after a COMMIT only. Each test finds its `topics` empty.

    `self.client_of_msgtx` is a client. `migrate` does not create msgtx's schema; this class does, in the test database.
    """

    topics: ClassVar[Sequence[str]] = ()

    def setUp(self) -> None:
        """Create the schema and the topics."""
        super().setUp()
        self.client_of_msgtx = client(alias(), create=True)
        self.addCleanup(self.client_of_msgtx.close)
        for topic in self.topics:
            self.client_of_msgtx.topics.create(topic, if_not_exists=True)
            self.addCleanup(self.client_of_msgtx.topics.delete, topic)

    def published(self, topic: str) -> list[Record]:
        """Return the committed records of a topic."""
        return list(self.client_of_msgtx.read(self.client_of_msgtx.snapshot([topic])))

    def work(self, command: WorkerCommand, **options: Any) -> None:
        """Run a worker until nothing is left for it."""
        call_command(command, idle_timeout="200ms", **options)
