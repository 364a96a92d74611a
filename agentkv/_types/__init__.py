"""Public values, the errors of agentkv, and checks of arguments."""
