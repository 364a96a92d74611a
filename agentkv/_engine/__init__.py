"""The step loop: the interface of an engine, the thread that steps it, and its commands."""
