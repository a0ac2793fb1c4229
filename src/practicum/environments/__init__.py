"""Worlds to practise in."""
