"""The parts of both kinds of consumer: waiting and waking, use by one thread at a time, leaving a group."""
