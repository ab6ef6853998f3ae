"""What rides in a user's SQL transaction: records, consumer offsets, and decisions of sealed transactions."""
