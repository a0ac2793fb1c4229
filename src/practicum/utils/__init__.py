"""Small helpers without knowledge of training: deadlines, threads, progress, memory, tables."""
