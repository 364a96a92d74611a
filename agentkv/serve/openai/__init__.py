"""Protocols of OpenAI's API."""
