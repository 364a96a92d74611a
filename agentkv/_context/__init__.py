"""Context and Branch: the public verbs, generations, streams and overflow."""
