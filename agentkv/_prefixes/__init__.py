"""Beginnings of prompts kept on disk, for later processes. Imports nothing, so that `import agentkv` stays lazy."""
