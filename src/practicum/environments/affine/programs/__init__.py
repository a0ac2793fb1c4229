"""Templates of programs that read standard input and print, in files by subject."""
