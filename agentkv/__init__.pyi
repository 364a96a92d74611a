"""What `agentkv` offers and where it is; `__init__.py` imports each name when it is first asked for."""

from . import adapters, formats, models, overflow, patterns, spec, testing, tools
from ._aio.tasks import gather
from ._chat.tokenizer import Tokenizer
from ._context.branch import Branch
from ._context.context import Context
from ._context.extend import Extended
from ._context.model_pool import ModelPool, PooledModel, open_models
from ._context.stream import TokenStream
from ._storage.load import Loaded
from ._storage.save import Saved
from ._types.adapter import Adapter
from ._types.errors import (
    AdapterError,
    AgentKVError,
    ApprovalPending,
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
    JournalError,
    LimitReached,
    ModelError,
    OutOfMemory,
    OutputIncomplete,
    OutputInvalid,
    OutsideWorkspace,
    PositionsExhausted,
    RemoteError,
    RepeatedCall,
    SnapshotError,
    SnapshotMismatch,
    StepFailed,
    ToolFailed,
    TooManyBranches,
    TraceError,
    TurnNotRunning,
    TurnStopped,
    WorkspaceConflict,
    WorkspaceError,
    WrongEventLoop,
)
from ._types.info import ModelInfo, ModelState, ServerState, Stats, StepRecord
from ._types.mark import Mark
from ._types.message import Message, ToolCall
from ._types.offload import Offload
from ._types.results import Choice, Generation, Token, TopLogprob, Usage
from ._types.run import CallRecord, CallRequest, Run, Step
from ._types.sampling import Sampling
from .agents import events
from .agents.agent import Agent
from .agents.options import Toolset
from .agents.run_context import RunContext
from .agents.running import RunningTurn
from .agents.stream import AgentStream
from .agents.tool import Retry, Tool, tool
from .journal.approvals import WaitingApproval
from .journal.journal import Journal
from .journal.runs import RecordedCall, RunInfo
from .journal.unfinished import UnfinishedRun
from .output import Constraint, Grammar, JsonSchema, Regex
from .sync.branch import SyncBranch
from .sync.context import SyncContext
from .sync.running import SyncTurn
from .sync.stream import SyncStream
from .sync.workspace import SyncWorkspaceView
from .workspaces.diff import WorkspaceDiff
from .workspaces.view import WorkspaceView
from .workspaces.workspace import Workspace

__version__: str

__all__ = [
    "Adapter",
    "AdapterError",
    "Agent",
    "AgentKVError",
    "AgentStream",
    "ApprovalPending",
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
    "Journal",
    "JournalError",
    "JsonSchema",
    "LimitReached",
    "Loaded",
    "Mark",
    "Message",
    "ModelError",
    "ModelInfo",
    "ModelPool",
    "ModelState",
    "Offload",
    "OutOfMemory",
    "OutputIncomplete",
    "OutputInvalid",
    "OutsideWorkspace",
    "PooledModel",
    "PositionsExhausted",
    "RecordedCall",
    "Regex",
    "RemoteError",
    "RepeatedCall",
    "Retry",
    "Run",
    "RunContext",
    "RunInfo",
    "RunningTurn",
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
    "SyncTurn",
    "SyncWorkspaceView",
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
    "TurnNotRunning",
    "TurnStopped",
    "UnfinishedRun",
    "Usage",
    "WaitingApproval",
    "Workspace",
    "WorkspaceConflict",
    "WorkspaceDiff",
    "WorkspaceError",
    "WorkspaceView",
    "WrongEventLoop",
    "adapters",
    "events",
    "formats",
    "gather",
    "models",
    "open_models",
    "overflow",
    "patterns",
    "spec",
    "testing",
    "tool",
    "tools",
]
