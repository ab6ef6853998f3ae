"""Mirrors: copies of topics in another database or cluster, each record once."""
