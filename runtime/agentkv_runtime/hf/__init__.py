"""Models of transformers, attending through an agentkv cache: shared by export and the torch backend. Needs torch."""
