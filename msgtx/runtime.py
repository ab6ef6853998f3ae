"""What a client is made of: connections, threads, the topics that it knows, and all that it has made and will close."""

import atexit
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgtx import callbacks, errors, forks
from msgtx.coordinator.completion import Completion
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.ending import DRAIN_SECONDS, Ending
from msgtx.observer import Observer, Observers
from msgtx.receiving.wakeup import Listener
from msgtx.settings import StopSignal
from msgtx.store.topics.topics import Topic, describe_topics, unknown_topic

if TYPE_CHECKING:  # imported when one is made: the command line starts faster
    from msgtx.consumer.consumer import Consumer
    from msgtx.producer.group_commit import GroupCommit
    from msgtx.producer.producer import Producer
    from msgtx.shares.polls import SharePolls
    from msgtx.shares.share_consumer import ShareConsumer


class Runtime:
    """Owns all that a client has made. May be shared by threads; does not survive `fork`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.completion = Completion(engine, self.look_at_topics)
        self.listener = Listener(engine)
        self.observers = Observers()
        self.closed = False
        self._lock = threading.Lock()
        self._known: dict[str, Topic] = {}
        self._group_commit: GroupCommit | None = None
        self._share_polls: SharePolls | None = None
        self._open: list[Producer | Consumer | ShareConsumer] = []
        self._workers: list[Ending] = []
        engine.moved = weakref.WeakMethod(self._server_moved)
        forks.follow(self, Runtime._forked)

    def _forked(self) -> None:
        """Handle a fork, in the child: another thread may have held the lock."""
        forks.release(self._lock)

    def _server_moved(self) -> None:
        """Have each producer look for losses before it sends anything else."""
        with self._lock:
            producers = self._producers()
        for producer in producers:
            producer._sender.losses.server_moved()

    # ── topics ──

    def topic(self, name: str, fresh: bool) -> Topic | None:
        """Return a topic; None if it is gone by now, and was asked for as it is now. Raise `UnknownTopicOrPartition`."""
        with self._lock:
            if not fresh and name in self._known:
                return self._known[name]
        return self.topics_now([name]).get(name) if fresh else self.require_topics(name)[0]

    def require_topics(self, *names: str) -> list[Topic]:
        """Return topics as they are now. Raise `UnknownTopicOrPartition`."""
        found = self.topics_now(names)
        for name in names:
            if name not in found:
                with self.engine.connection() as connection:
                    raise unknown_topic(connection, name)
        return [found[name] for name in names]

    def topics_now(self, names: Sequence[str]) -> dict[str, Topic]:
        """Return topics as they are now, by one call; those that are gone are absent."""
        with self.engine.connection() as connection:
            found = describe_topics(connection, names)
        with self._lock:
            for name in names:
                self._known.pop(name, None)
            self._known.update(found)
        return found

    def look_at_topics(self, connection: RawConnection) -> None:
        """Look for changes of the topics in use. One that was deleted stays known until its use is refused."""
        with self._lock:
            names = sorted(self._known)
        found = describe_topics(connection, names)
        with self._lock:
            known = self._known
            known.update({name: t for name, t in found.items() if name not in known or not t.is_older_than(known[name])})
            producers = self._producers()
        for producer in producers:
            for topic in found.values():
                producer._topic_changed(topic)

    # ── what it has made ──

    @property
    def group_commit(self) -> "GroupCommit":
        """What its producers commit together with."""
        from msgtx.producer.group_commit import GroupCommit

        with self._lock:
            if self._group_commit is None:
                self._group_commit = GroupCommit(self.engine, self.completion.notifier)
            return self._group_commit

    @property
    def share_polls(self) -> "SharePolls":
        """What its share consumers poll together with."""
        from msgtx.shares.polls import SharePolls

        with self._lock:
            if self._share_polls is None:
                self._share_polls = SharePolls(self.engine)
            return self._share_polls

    def _producers(self, *, closed: bool = False) -> "list[Producer]":
        """Return the producers that are open, and with `closed` those that are being closed. The caller holds the lock."""
        if not self._open or "msgtx.producer.producer" not in sys.modules:
            return []
        from msgtx.producer.producer import Producer

        return [user for user in self._open if isinstance(user, Producer) and (closed or not user.closed)]

    def remember(self, user: "Producer | Consumer[Any, Any] | ShareConsumer[Any, Any]") -> None:
        """Close it with the client; what is closed is forgotten. Topics may have been altered: it looks at them anew."""
        with self._lock:
            self._known.clear()
            self._open = [other for other in self._open if not other.closed]
            self._open.append(user)
            closed = self.closed
        if closed:  # by another thread, which may not have seen it
            user.close()
        self.require_open()
        self.observers.tell(lambda observer: observer.made(user))

    def consumers(self) -> "list[Consumer]":
        """Return the consumers that are open."""
        with self._lock:
            users = [user for user in self._open if not user.closed]
        if not users:
            return []
        from msgtx.consumer.consumer import Consumer

        return [user for user in users if isinstance(user, Consumer)]

    def observe(self, observer: Observer) -> None:
        """See `Client.observe`."""
        with self._lock:
            known, users = observer in self.observers.each, [user for user in self._open if not user.closed]
        self.observers.add(observer)
        for user in () if known else users:
            observer.made(user)

    def require_open(self) -> None:
        """Raise `IllegalState` for a closed client, and in the child of a fork."""
        self.engine.origin.require("this client")
        if self.closed:
            raise errors.IllegalState("the client is closed", reason="closed")

    def stop_or_close(self, stop: StopSignal | None) -> StopSignal:
        """Return a signal that is set with `stop`, and raises `IllegalState` once the client is closed."""
        return _StopOrClose(self, stop)

    @contextlib.contextmanager
    def ending(self, stop: StopSignal | None) -> Iterator[Ending]:
        """Have a worker end by its caller's event, by SIGTERM, and ahead of this client."""
        ending = Ending(stop)
        with self._lock:
            self._workers.append(ending)
        try:
            with ending.by_sigterm():
                yield ending
        finally:
            ending.over.set()
            with self._lock:
                self._workers.remove(ending)

    def close(self) -> None:
        """See `Client.close`."""
        if self.engine.origin.is_parent:
            return
        callbacks.require_none("close", self.observers)
        with self._lock:
            producers = self._producers(closed=True)
        for producer in producers:
            producer._require_outside("close")
        with self._lock:
            self.closed = True
            workers, users = self._workers[:], self._open[:]
        deadline = time.monotonic() + DRAIN_SECONDS
        for worker in workers:
            worker.ask()
        for worker in workers:
            if threading.get_ident() not in worker.threads:
                worker.over.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.ExitStack() as each:  # all are closed, though one raises
            for user in reversed(users):
                each.callback(user.close)
        self.completion.close()
        self.listener.close()
        self.engine.close()


# Before any handler that the program registers after `connect`: such a one may still send and commit.
@atexit.register
def _interpreter_ends() -> None:
    """Close what was not closed, then write the commits that wait: of the modules that this process has used."""
    for name, function in (("msgtx.producer.producer", "close_all"), ("msgtx.consumer.commits", "settle_all")):
        if (module := sys.modules.get(name)) is not None:
            getattr(module, function)()


class _StopOrClose:
    """See `Runtime.stop_or_close`."""

    def __init__(self, runtime: Runtime, stop: StopSignal | None) -> None:
        self._runtime = runtime
        self._stop = stop

    def is_set(self) -> bool:
        """See `StopSignal`."""
        self._runtime.require_open()
        return self._stop is not None and self._stop.is_set()
