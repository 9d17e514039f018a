"""How long a test may take: what is judged by the reference's own time, and with what margin."""

TEST_LIMIT_S = 30.0  # CPU seconds of one test on the stub and the reference
# of one on anybody else: so much, and so many times what the reference's slowest took
LEAST_LIMIT_S, TIMES_SLOWEST = 5.0, 5.0
AGAIN_SHARE = 0.2  # of the least, where another test of the same solution has been stopped
WAITING = 10  # seconds by the wall's clock for a second of CPU time, where many processes compete
