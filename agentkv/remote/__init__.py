"""The verbs of branches over a server: `Context.connect`.

Branches are token logs in this process; forks share the server's prefix cache.
"""
