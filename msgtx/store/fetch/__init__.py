"""Reading: from positions, by time, consistent cuts, and who is woken."""
