"""`agentkv bench`: measurements of a model on this machine."""
