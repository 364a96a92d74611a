"""Context and Branch: the public methods, generations, streams and overflow."""
