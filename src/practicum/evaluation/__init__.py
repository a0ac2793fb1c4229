"""Examination: panels, statistics, pictures."""
