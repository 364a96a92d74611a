"""The verbs of a Context for code that does not await. Users find the names in `agentkv` itself."""
