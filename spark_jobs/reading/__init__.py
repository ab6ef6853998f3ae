"""From committed ranges to rows of Spark."""
