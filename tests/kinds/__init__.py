"""Kinds of faults: one file each, a table of small inputs of several makers, to which the next case is one row."""
