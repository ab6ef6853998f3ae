"""The share consumer: what it acquires, holds, answers for, and its place in its group."""

from msgtx.shares.share_consumer import ShareConsumer

__all__ = ["ShareConsumer"]
