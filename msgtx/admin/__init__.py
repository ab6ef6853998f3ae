"""What an administrator asks and does: transactions, partitions, producers."""
