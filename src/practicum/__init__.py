"""Practicum: turn a language model into a working agent."""

__version__ = "0.1.0"
