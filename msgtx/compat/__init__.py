"""Kafka's Python API over msgtx: programs written for confluent-kafka run unchanged (docs: porting)."""
