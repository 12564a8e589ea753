"""`python -m tests.crash`: real processes are killed and stalled at random, and then the books are checked."""
