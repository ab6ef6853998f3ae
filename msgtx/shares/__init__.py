"""The share consumer: the records that it acquires, holds and answers for, and its place in its group."""

from msgtx.shares.share_consumer import ShareConsumer

__all__ = ["ShareConsumer"]
