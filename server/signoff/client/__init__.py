"""Client of the HTTP API."""
