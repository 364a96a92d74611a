"""Durable record of agents' turns: what a process was doing when it ended, and how to go on. `kv.Journal`."""
