"""The verbs of branches over a server: `Context.connect`. Branches are logs of tokens here, and the server's prefix
cache is what a fork shares."""
