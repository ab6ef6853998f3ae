"""Records, consumer offsets and decisions of sealed transactions that ride in a user's SQL transaction."""
