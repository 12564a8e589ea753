"""Workflow code supplied at run time: stored, pinned, sandboxed."""
