"""The producer: what `send` collects, how it goes out, and the transactions around it."""

from msgtx.producer.producer import Producer, Transaction

__all__ = ["Producer", "Transaction"]
