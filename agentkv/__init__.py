"""Agents on forked KV-cache branches."""
