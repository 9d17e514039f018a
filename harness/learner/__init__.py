"""What the learner has done, what it is worth, and what comes next."""
