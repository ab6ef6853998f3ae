"""Appending: batches into logs, with and without a producer."""
