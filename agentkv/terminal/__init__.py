"""`agentkv chat`: talking to a model in a terminal, on branches."""
