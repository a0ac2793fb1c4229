"""Interval estimates, tests, power and multiple-testing corrections."""
