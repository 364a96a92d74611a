"""Values that users hold, the errors of agentkv, and checks of arguments."""
