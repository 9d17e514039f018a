"""How long a test may take: what is judged by the reference's own time, and with what margin."""

# CPU seconds of one on anybody but the stub and the reference: so much, and so many times what the
# reference's slowest took
LEAST_LIMIT_S, TIMES_SLOWEST = 5.0, 5.0
AGAIN_SHARE = 0.2  # of the least, where another test of the same solution has been stopped
WAITING = 10  # seconds by the wall's clock for a second of CPU time, where many processes compete
