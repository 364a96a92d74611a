"""Real clients, installed from npm, against a server of ours: `make test-clients`."""
