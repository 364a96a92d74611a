"""Export of Hugging Face models to ExecuTorch programs. Needs torch; the rest of the package does not."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
