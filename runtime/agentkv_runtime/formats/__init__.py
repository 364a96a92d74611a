"""Call formats: what a model writes, read as a message while it arrives, and grammars of what it may write."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
