"""`python -m signoff` is the command line."""

from __future__ import annotations

from signoff.cli.main import main

if __name__ == "__main__":
    main(prog_name="signoff")
