"""From rows of Spark to one transaction."""
