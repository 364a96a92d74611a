"""Exported models that are kept on this machine: pulled from the hub, or exported when they were first opened."""
