"""The consumer: its partitions, positions, fetches and commits."""

from msgtx.consumer.consumer import Consumer

__all__ = ["Consumer"]
