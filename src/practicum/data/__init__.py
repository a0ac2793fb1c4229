"""Episodes, task files and data sets on disk."""
