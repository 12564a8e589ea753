"""Puts the rest together from a database URL and a registry; its public name is `signoff.Engine`."""
