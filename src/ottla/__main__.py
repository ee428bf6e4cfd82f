"""`python -m ottla` is the `ottla` command."""

from __future__ import annotations

from ottla.cli.main import main

if __name__ == "__main__":
    main()
