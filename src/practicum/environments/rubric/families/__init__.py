"""Families of generated workflows, one file per field of work."""
