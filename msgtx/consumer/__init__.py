"""The consumer: which partitions it reads, where it stands, what it fetches and commits."""

from msgtx.consumer.consumer import Consumer

__all__ = ["Consumer"]
