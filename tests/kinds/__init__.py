"""One file per kind of fault: tables of small inputs, to which the next case is one more row."""
