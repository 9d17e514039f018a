"""How things look: scorecard, pictures, ladder, a class, measured results."""
