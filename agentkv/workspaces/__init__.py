"""Folders whose files move with branches: views, versions, merging, confinement. Knows nothing of models."""
