"""Typed configuration schemas and the override grammar."""
