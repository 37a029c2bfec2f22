"""The command line: one options table to flags, environment and help, and one module a command."""
