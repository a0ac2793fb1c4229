"""Runs for people to look at: reading them, what a page shows of them, and the page in one file."""
