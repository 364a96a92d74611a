"""Names of `agentkv.trace`; `__init__.py` imports each when it is first used."""

from .otel import spans
from .recording import Recording, logged, record
from .replayed import Changed, Difference, Replayed
from .replaying import replay

__all__ = ["Changed", "Difference", "Recording", "Replayed", "logged", "record", "replay", "spans"]
