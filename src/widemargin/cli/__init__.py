"""The command line: arguments in, printing out; the work is done elsewhere."""
