"""Machines that are not there: CUDA threads, ranks of a job, a serving engine."""
