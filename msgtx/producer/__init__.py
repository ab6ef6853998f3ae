"""The producer: `send` collects records in batches, a sender stores them, and transactions go around both."""

from msgtx.producer.producer import Producer, Transaction

__all__ = ["Producer", "Transaction"]
