"""`python -m tests.bench`: Signoff, DBOS Transact and the disk, measured side by side on this machine."""
