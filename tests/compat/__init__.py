"""Tests of Kafka's Python API over msgtx."""
