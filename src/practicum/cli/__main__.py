"""`python -m practicum.cli` is the `practicum` command."""

from practicum.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
