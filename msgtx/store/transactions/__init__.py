"""Transactions: their ids, how they end, and which are undecided."""
