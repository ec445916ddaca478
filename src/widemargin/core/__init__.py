"""What everything else stands on: files, records, checks, the screen, signals, precision, random numbers, modes."""
