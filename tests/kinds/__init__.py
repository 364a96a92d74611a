"""Faults that were met, one file for each kind: a table of small inputs, to which the next one is a row."""
