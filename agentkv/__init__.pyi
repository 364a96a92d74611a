"""What `agentkv` offers and where it is; `__init__.py` imports each name when it is first asked for."""

from . import adapters, formats, models, overflow, patterns, spec, testing
from ._branch import Branch
from ._context import Context
from ._errors import (
    AgentKVError,
    BranchBusy,
    BranchClosed,
    BranchExists,
    BranchNotFound,
    ContextClosed,
    ContextFull,
    DraftMismatch,
    ForeignBranch,
    InvalidInput,
    InvalidRollback,
    LimitReached,
    ModelError,
    OutOfMemory,
    OutputIncomplete,
    OutputInvalid,
    PositionsExhausted,
    RemoteError,
    RepeatedCall,
    SnapshotError,
    SnapshotMismatch,
    StepFailed,
    ToolFailed,
    TooManyBranches,
    TraceError,
    WrongEventLoop,
)
from ._extending import Extended
from ._gather import gather
from ._generation import Choice, Generation, Token, TopLogprob, Usage
from ._loading import Loaded
from ._mark import Mark
from ._message import Message, ToolCall
from ._model_info import ModelInfo
from ._sampling import Sampling
from ._saving import Saved
from ._servers import ServerState
from ._stats import Stats
from ._stream import TokenStream
from ._tokenizer import Tokenizer
from ._trace import StepRecord
from .agents import events
from .agents.agent import Agent
from .agents.calls import CallRecord, CallRequest
from .agents.options import Toolset
from .agents.run import Run
from .agents.run_context import RunContext
from .agents.step import Step
from .agents.stream import AgentStream
from .agents.tool import Retry, Tool, tool
from .output import Constraint, Grammar, JsonSchema, Regex
from .sync.branch import SyncBranch
from .sync.context import SyncContext
from .sync.stream import SyncStream

__version__: str

__all__ = [
    "Agent",
    "AgentKVError",
    "AgentStream",
    "Branch",
    "BranchBusy",
    "BranchClosed",
    "BranchExists",
    "BranchNotFound",
    "CallRecord",
    "CallRequest",
    "Choice",
    "Constraint",
    "Context",
    "ContextClosed",
    "ContextFull",
    "DraftMismatch",
    "Extended",
    "ForeignBranch",
    "Generation",
    "Grammar",
    "InvalidInput",
    "InvalidRollback",
    "JsonSchema",
    "LimitReached",
    "Loaded",
    "Mark",
    "Message",
    "ModelError",
    "ModelInfo",
    "OutOfMemory",
    "OutputIncomplete",
    "OutputInvalid",
    "PositionsExhausted",
    "Regex",
    "RemoteError",
    "RepeatedCall",
    "Retry",
    "Run",
    "RunContext",
    "Sampling",
    "Saved",
    "ServerState",
    "SnapshotError",
    "SnapshotMismatch",
    "Stats",
    "Step",
    "StepFailed",
    "StepRecord",
    "SyncBranch",
    "SyncContext",
    "SyncStream",
    "Token",
    "TokenStream",
    "Tokenizer",
    "TooManyBranches",
    "Tool",
    "ToolCall",
    "ToolFailed",
    "Toolset",
    "TopLogprob",
    "TraceError",
    "Usage",
    "WrongEventLoop",
    "adapters",
    "events",
    "formats",
    "gather",
    "models",
    "overflow",
    "patterns",
    "spec",
    "testing",
    "tool",
]
