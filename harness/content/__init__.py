"""Katas and the curriculum as plain data, and whose file is meant."""
