"""Machines that are not there, a serving engine, and the small language models katas share."""
