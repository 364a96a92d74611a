"""Tokens and chat templates of a model: text to ids and back."""
