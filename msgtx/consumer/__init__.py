"""The consumer: which partitions it reads, where it stands, what it fetches and commits. The share consumer."""

from msgtx.consumer.consumer import Consumer
from msgtx.consumer.shares import ShareConsumer

__all__ = ["Consumer", "ShareConsumer"]
