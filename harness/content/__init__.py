"""Katas and the curriculum as plain data."""
