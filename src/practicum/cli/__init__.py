"""The command line: one file per command, which parses the arguments, calls the library and prints the result."""
