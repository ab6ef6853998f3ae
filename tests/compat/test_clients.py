"""The client that the objects of the facade share."""

import threading
from collections.abc import Callable

import msgtx
from msgtx.compat.confluent_kafka import Producer, clients

WAIT = 60.0


def finishes(call: Callable[[], object]) -> bool:
    """Return whether a call returns that may wait for a lock for ever."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(WAIT)
    return not thread.is_alive()


def test_the_garbage_collector_releases_an_object_in_the_middle_of_a_step_that_holds_the_lock() -> None:
    first, second = Producer({}), Producer({})
    assert first._client is not None
    shared = first._client._shared
    release = first._client.release

    def step() -> None:
        with clients._lock, shared.lock:
            shared.get()
            release()

    assert finishes(step)
    assert shared.users == 1
    second.close()
    assert shared.client is not None
    assert shared.client.closed


def test_objects_of_many_threads_share_one_client_and_the_last_closes_it() -> None:
    made: list[msgtx.Client] = []
    ready = threading.Barrier(4, timeout=WAIT)

    def use() -> None:
        producer = Producer({})
        ready.wait()
        assert producer._client is not None
        made.append(producer._client.get())
        ready.wait()
        producer.close()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT)
    assert len(made) == 4
    assert len({id(each) for each in made}) == 1
    assert made[0].closed
    assert not [place for place, shared in clients._open.items() if shared.client is made[0]]
