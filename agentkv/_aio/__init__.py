"""Locks, tasks, threads and event loops for asyncio and trio; independent of models."""
