"""Tools, agents and what happens in a turn. Users find the names in `agentkv` itself."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["events"])
