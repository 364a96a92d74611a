"""Opening a model: its options, its export, its drafters."""
