"""Pauses: they last as long as they should, and a stop ends them."""

import threading
import time

from msgtx.pauses import pause


def test_a_pause_ends_by_itself_or_when_it_is_asked_to() -> None:
    class Counting(threading.Event):
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return super().is_set()

    stop = Counting()
    for given in (None, stop):
        began = time.monotonic()
        pause(0.25, given)
        assert time.monotonic() - began >= 0.25
    assert stop.looks < 10, "it sleeps meanwhile"
    stop.set()
    began = time.monotonic()
    pause(20.0, stop)
    assert time.monotonic() - began < 10.0
