"""Models of other frameworks over branches in this process. Each module needs its framework and is imported on first
use."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from . import langchain as langchain
    from . import mcp as mcp
    from . import openai as openai
    from . import openai_agents as openai_agents
    from . import pydantic_ai as pydantic_ai

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules=["langchain", "mcp", "openai", "openai_agents", "pydantic_ai"]
)
