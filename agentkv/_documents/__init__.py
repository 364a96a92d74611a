"""Documents that outlive a process: saved conversations and published branches."""
