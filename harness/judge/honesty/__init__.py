"""What the code under test may not touch."""
