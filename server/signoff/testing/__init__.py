"""The test kit: an engine in memory with a clock that a test moves and people who answer."""
