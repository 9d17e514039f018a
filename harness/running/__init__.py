"""One kata in a process of its own, and what came of it."""
