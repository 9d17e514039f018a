"""Making katas and proving them."""
