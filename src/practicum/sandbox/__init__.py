"""Runs model-written code in isolated processes with limits on time, memory and files."""
