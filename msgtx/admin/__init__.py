"""An administrator's calls: transactions, partitions, producers."""
