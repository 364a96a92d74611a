"""Tools, agents and what happens in a turn. Users find the names in `agentkv` itself."""
