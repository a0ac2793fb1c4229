"""Templates of programs that read standard input and print, in files by what they work on."""
