"""The eager path: the same cache in plain Python and torch, on any device torch has. Also the oracle of the tests."""
