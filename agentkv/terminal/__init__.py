"""`agentkv chat`: chats with a model in a terminal, on branches."""
