"""Consumer groups: members and offsets."""
