"""What `agentkv.trace` offers; `__init__.py` imports each name when it is first asked for."""

from .recording import Recording, logged, record
from .player import replay
from .replayed import Changed, Difference, Replayed
from .otel import spans

__all__ = ["Changed", "Difference", "Recording", "Replayed", "logged", "record", "replay", "spans"]
