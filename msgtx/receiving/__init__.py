"""What both kinds of consumer use: waiting and being woken, use by one thread at a time, leaving a group."""
