"""What `agentkv.trace` offers; `__init__.py` imports each name when it is first asked for."""

from .otel import spans
from .recording import Recording, logged, record
from .replayed import Changed, Difference, Replayed
from .replaying import replay

__all__ = ["Changed", "Difference", "Recording", "Replayed", "logged", "record", "replay", "spans"]
