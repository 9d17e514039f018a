"""Counters of what code does: one file a meter, exact on any machine."""
