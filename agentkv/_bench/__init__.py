"""`agentkv bench`: measures a model on this machine."""
