"""Worker, drivers, timers, lifecycle and recovery of runs."""
