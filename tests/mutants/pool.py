"""Many items of work, and workers that each do one at a time."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

Item = TypeVar("Item")
Worker = TypeVar("Worker")
Answer = TypeVar("Answer")


def shared(
    items: Sequence[Item],
    workers: Sequence[Worker],
    work: Callable[[Item, Worker], Answer],
    stop: Callable[[Worker], object],
) -> Iterator[Answer]:
    """Do `work(item, worker)` with all workers at once; yield the answers as they come.

    An interruption stops the workers, each in the middle of its work.
    """
    ended = threading.Event()
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)

    def one(item: Item) -> list[Answer]:
        if ended.is_set():
            return []
        worker = free.get()
        try:
            return [work(item, worker)]
        finally:
            free.put(worker)

    with ThreadPoolExecutor(len(workers)) as executor:
        try:
            for done in as_completed([executor.submit(one, item) for item in items]):
                yield from done.result()
        except BaseException:
            ended.set()
            executor.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                stop(worker)
            raise
