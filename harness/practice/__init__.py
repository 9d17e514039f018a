"""Short forms of practice, made of what a kata has: hunts, shuffled lines, questions."""
