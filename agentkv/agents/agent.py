"""Agents: instructions, tools and limits, and the turns that they take on branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, overload

from agentkv_runtime.formats.spelling import MOST_CALLS
from typing_extensions import TypeForm, TypeVar, Unpack

from .._aio.threads import ToolThreads
from .._context.branch import Branch
from .._context.context import Context
from .._context.files import checked_workspace, new_view
from .._context.handle import core_of, handle_of
from .._model.drafters import INHERIT, Inherit, Speculative
from .._model.generate_options import Thinking
from .._types.checks import as_messages, check_keywords, checked_items, checked_text, known_keywords
from .._types.errors import InvalidInput
from .._types.show import preview
from .answer_format import AnswerFormat
from .approval import Approve, approver_of
from .control import TurnControl
from .options import (
    AfterCall,
    AgentKwargs,
    BeforeRound,
    RunKwargs,
    Style,
    Toolset,
    check_hooks,
    check_limits,
    checked_tools,
)
from .run_context import RunContext
from .running import RunningTurn
from .steering import MESSAGE_TOKENS, Steer, Steering, ToolChoice
from .stream import AgentStream
from .sub_agent import SubAgent, SubAgentPlace, sub_agent
from .tool import Tool
from .tool_runner import Heard, ToolEnvironment, ignore_event
from .trunks import TrunkCache, warn_missing_tools
from .turn import Turn
from .turn_log import new_turn_log

if TYPE_CHECKING:
    from .._context.model_pool import PooledModel
    from .._types.adapter import Adapter
    from .._types.checks import Prompt
    from .._types.run import Run, Step
    from .._types.sampling import Sampling
    from ..output.grammar import GrammarSource
    from ..workspaces.workspace import Workspace
    from .tool_runner import Ask, Emit
    from .turn_log import TurnLog

Deps = TypeVar("Deps", contravariant=True, default=None)
Out = TypeVar("Out", covariant=True, default=str)


@dataclass(frozen=True, eq=False)
class Agent(Generic[Deps, Out]):
    """Instructions, tools and output type of an agent; frozen. Turns run on branches: `agent.run(branch, ...)`.

    `Agent[Deps, Out]`: the type of `deps` that its tools get, and of its output. Both are inferred, except where only
    some of the tools take a RunContext: write `kv.Agent[Deps, str](...)` there.

    Attributes:
        instructions: the system prompt.
        tools: made by `kv.tool`, with distinct names.
        output: form of the answer: `str`, or a type, kv.Regex, kv.JsonSchema, kv.Grammar as `Branch.generate` takes
            them. With tools it must have a JSON schema.
        max_rounds: most messages of a turn.
        max_tokens: most tokens that are generated in a turn.
        max_message_tokens: most tokens of one message.
        max_calls: most calls of a turn; None for any number.
        max_calls_per_message: most calls of one message.
        max_repeats: most messages that repeat a call with no other call in between; one more ends the turn. A repeated
            call does not run: the model reads its earlier result once, and then that the call is refused.
        max_seconds: longest time of a turn, waits for tools and persons included; math.inf for any.
        sampling: how tokens are drawn; None is greedy.
        speculative: a strategy of `kv.spec` or your own, None for none; left out, as the Context does.
        toolsets: sources of further tools, queried before each turn.
        output_retries: most retries of an answer that its type refuses or that is empty.
        tool_choice: whether messages may call ("auto"), must ("required") or must not ("none"); or the name of the tool
            that they call. "required" and a name are for the first call of a turn: afterwards it is "auto", or no turn
            would end. A function, plain or async, gets the run context before each message and returns one of these.
        required: tools that must have been called, and done, before an answer counts: in this order, or in any where it
            is a set. Until then messages are calls of these. A call whose outcome is "unknown" counts as well.
        final_tool: the tool that ends the turn: each message is a call of some tool until this one is done, and the
            last of `max_rounds`, and one after a message that only repeats calls, is a call of this one. Its result is
            the output; where that is None, its arguments are.
        call_threshold: from 0 to 1; before the first message of a turn the model is asked on a fork whether a tool is
            made for the request; below this probability, the message makes no call. None skips the question.
        style: "free", or "plan": each message is a list of calls, an answer in words being one of them, for models that
            do not call tools by themselves.
        thinking: how many tokens of each message may be reasoning, as `Branch.generate` has it; False and True also
            reach the chat template, where that has a switch.
        template: variables for the chat template, such as `{"enable_thinking": False}`.
        before_round: called with the run context before each message; what it raises ends the turn.
        after_call: called with the run context and the record of each call that ends; what it raises ends the turn.

    Raises:
        InvalidInput: an argument of the wrong type or out of range, two tools of one name.
    """

    instructions: str = ""
    _: KW_ONLY
    tools: Sequence[Tool[Deps, ..., Any]] = ()
    output: Any = str
    max_rounds: int = 8
    max_tokens: int = 4096
    max_message_tokens: int = MESSAGE_TOKENS
    max_calls: int | None = None
    max_calls_per_message: int = MOST_CALLS
    max_repeats: int = 2
    max_seconds: float = 3600
    sampling: Sampling | None = None
    speculative: Speculative | Inherit | None = INHERIT
    toolsets: Sequence[Toolset] = ()
    output_retries: int = 1
    tool_choice: ToolChoice = "auto"
    required: Sequence[str] | AbstractSet[str] = ()
    final_tool: str | None = None
    call_threshold: float | None = None
    style: Style = "free"
    thinking: Thinking = None
    template: Mapping[str, Any] | None = None
    before_round: BeforeRound | None = None
    after_call: AfterCall | None = None
    answers: AnswerFormat[Out] = field(init=False, repr=False)
    steering: Steering = field(init=False, repr=False)

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Agent[Deps, Any],
            instructions: str = "",
            *,
            final_tool: str,
            tools: Sequence[Tool[Deps, ..., Any]] = (),
            **options: Unpack[AgentKwargs],
        ) -> None: ...
        @overload
        def __init__(
            self: Agent[Deps, str],
            instructions: str = "",
            *,
            tools: Sequence[Tool[Deps, ..., Any]] = (),
            **options: Unpack[AgentKwargs],
        ) -> None: ...
        @overload
        def __init__(
            self,
            instructions: str = "",
            *,
            output: TypeForm[Out],
            tools: Sequence[Tool[Deps, ..., Any]] = (),
            **options: Unpack[AgentKwargs],
        ) -> None: ...
        @overload
        def __init__(
            self,
            instructions: str = "",
            *,
            output: GrammarSource[Out],
            tools: Sequence[Tool[Deps, ..., Any]] = (),
            **options: Unpack[AgentKwargs],
        ) -> None: ...
        def __init__(self, instructions: str = "", **options: Any) -> None: ...

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        if not isinstance(self.instructions, str):
            raise InvalidInput(f"instructions are {preview(self.instructions)}, but they must be a str")
        checked_text(self.instructions, "instructions")
        object.__setattr__(self, "tools", checked_tools(self.tools))
        object.__setattr__(self, "toolsets", tuple(checked_items(self.toolsets, "toolsets")))
        check_limits(self)
        plans = self.style == "plan"
        object.__setattr__(self, "answers", AnswerFormat(self.output, self.max_calls_per_message, plans))
        check_hooks(before_round=self.before_round, after_call=self.after_call)
        self.answers.check(bool(self.tools or self.toolsets))
        steering = Steering(self.tool_choice, None, self.required, self.final_tool, self.max_message_tokens)
        object.__setattr__(self, "steering", steering)
        if not self.toolsets:
            steering.check(self, [tool.name for tool in self.tools])

    async def trunk(
        self, context: Context, *, workspace: Workspace | None = None, adapter: Adapter | None = None
    ) -> Branch:
        """Opens a branch with the system prompt and the tools, to fork and to run on.

        The prompt is prefilled once per Context and adapter, and stays cached as long as the agent is referenced;
        `Context.keep` frees it.

        Args:
            context: the Context that the branch is to be in.
            workspace: a folder of whose files the branch has a copy; see `Context.branch`.
            adapter: a LoRA adapter of the Context that prompt and turns are computed with; see `Context.branch`.

        Raises as `Context.branch` does, and InvalidInput for tools where the model's call format is not known.
        """
        if not isinstance(context, Context):
            raise InvalidInput(f"context is {preview(context)}, but it must be a Context; `kv.Context.open` opens one")
        core = core_of(context)
        id = core.adapters.checked(adapter)
        tools = await self._all_tools()
        definitions = self.answers.definitions(tools)
        self.answers.constraint(core.chat.format, tools)  # raises here for what no grammar can constrain
        async with new_view(checked_workspace(workspace)) as view:
            branch = await core.singleton(TrunkCache).fork(self, context, definitions, id)
            handle_of(branch).record.view = view
            return branch

    @overload
    async def run(
        self: Agent[None, Out],
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: None = None,
        **how: Unpack[RunKwargs],
    ) -> Run[Out]: ...
    @overload
    async def run(
        self,
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: Deps,
        **how: Unpack[RunKwargs],
    ) -> Run[Out]: ...

    async def run(
        self,
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: Any = None,
        approve: Approve | None = None,
        keep_partial: bool = False,
        **steer: Unpack[Steer],
    ) -> Run[Out]:
        """Runs one turn: the question, rounds of messages and calls, the answer.

        A turn is a transaction: an error, a limit or a cancellation leaves the branch where the turn began; what tools
        did meanwhile stays done, and `error.run` has the record of it. While it runs, verbs on the branch raise
        BranchBusy; `fork` does not mind.

        Args:
            branch: a trunk of this agent, or a fork of one.
            prompt: the user's words, or chat messages; None where the branch holds the question already.
            deps: what tools get as `RunContext.deps`.
            approve: decides on calls of tools that say approve=True: it gets a `kv.events.ApprovalAsked` and returns
                True or False, or answers the event. Without it they are denied.
            keep_partial: keep the work of a turn that ends early on the branch: the message as far as it was written,
                and the results of its calls where the message was complete.
            steer: `tool_choice`, `required`, `final_tool`, `max_message_tokens` of this turn, instead of the agent's;
                and `allowed_tools`, names of the tools in the prompt that it may call.

        Raises:
            LimitReached: one of the agent's limits; `limit` names it. RepeatedCall is one.
            ToolFailed: a tool with on_error="raise" failed.
            OutputInvalid: the answer was refused by its type, and so were its retries.
            AgentKVError: as the verbs do: ContextFull, BranchBusy, StepFailed and so on.
        """
        turn = await self._turn(branch, deps, self._steered(steer), ignore_event, approver_of(approve))
        return await turn.run(as_messages(prompt), keep_partial)

    @overload
    def stream(
        self: Agent[None, Out],
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: None = None,
        **how: Unpack[RunKwargs],
    ) -> AgentStream[Out]: ...
    @overload
    def stream(
        self,
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: Deps,
        **how: Unpack[RunKwargs],
    ) -> AgentStream[Out]: ...

    def stream(
        self,
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: Any = None,
        approve: Approve | None = None,
        keep_partial: bool = False,
        **steer: Unpack[Steer],
    ) -> AgentStream[Out]:
        """Runs a turn as `run` does, and yields its events: `async with agent.stream(branch, "...") as events: ...`.

        Calls of tools that say approve=True come as `kv.events.ApprovalAsked`, unless there is a callback. Leaving the
        block before `Finished` was read cancels the turn; with `keep_partial` the branch then holds the text that was
        read.
        """
        steering = self._steered(steer)
        return AgentStream(
            lambda emit, ask, take_back, control: self._turn(
                branch, deps, steering, emit, ask, control, take_back=take_back
            ),
            lambda turn: turn.run(as_messages(prompt), keep_partial),
            approve,
            waits=keep_partial,
        )

    @overload
    def start(
        self: Agent[None, Out],
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: None = None,
        **how: Unpack[RunKwargs],
    ) -> RunningTurn[Out]: ...
    @overload
    def start(
        self,
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: Deps,
        **how: Unpack[RunKwargs],
    ) -> RunningTurn[Out]: ...

    def start(
        self,
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: Any = None,
        approve: Approve | None = None,
        keep_partial: bool = False,
        **steer: Unpack[Steer],
    ) -> RunningTurn[Out]:
        """Starts a turn as `run` takes it, in a task of its own: `run = agent.start(branch, "...")`, later `await run`.

        Meanwhile it can be steered, paused, resumed and stopped. It runs until it ends, even where what this returns is
        dropped, or until the Context does, which ends it and waits for that. Raises InvalidInput, BranchBusy (a turn
        runs on the branch), BranchClosed and ContextClosed at once; all else is raised by awaiting the turn, BranchBusy
        too where another turn was started in the same moment.
        """
        steering, messages, ask = self._steered(steer), as_messages(prompt), approver_of(approve)
        _check_branch(branch)
        return RunningTurn[Out](branch).start(
            lambda task, control: self._turn(branch, deps, steering, task.tell, ask, control, is_heard=task.is_heard),
            lambda turn: turn.run(messages, keep_partial),
        )

    @overload
    async def step(
        self: Agent[None, Out], branch: Branch, *, deps: None = None, **how: Unpack[RunKwargs]
    ) -> Step[Out]: ...
    @overload
    async def step(self, branch: Branch, *, deps: Deps, **how: Unpack[RunKwargs]) -> Step[Out]: ...

    async def step(
        self,
        branch: Branch,
        *,
        deps: Any = None,
        approve: Approve | None = None,
        keep_partial: bool = False,
        **steer: Unpack[Steer],
    ) -> Step[Out]:
        """Runs one round, for loops of your own: a message, and the results of its calls. A transaction, as `run`.

        The branch holds the question: `await branch.extend([{"role": "user", "content": "..."}])`. The message is the
        answer where `step.done`. Tools that were called since the question count as called; `tool_choice` is that of
        this message. A step knows no other: bounds of a turn (`max_rounds`, `max_calls`, `max_repeats` and so on) are
        of this message alone, a call that an earlier step made runs again, and nobody is asked to come to an end. The
        loop is yours, and so is where it ends: pass `tool_choice="none"` to have the answer. Raises as `run` does.
        """
        turn = await self._turn(branch, deps, self._steered(steer), ignore_event, approver_of(approve))
        return await turn.step(keep_partial)

    def as_tool(
        self,
        name: str,
        description: str,
        *,
        fork: bool = True,
        context: Context | PooledModel | None = None,
        adapter: Adapter | None = None,
    ) -> Tool[Deps, ..., Any]:
        """Makes this agent a tool of another one: the model calls it with a task, and reads its output.

        With `fork` it works on a fork of the caller's branch, as that was before the message that calls it: it shares
        the caller's history, costs no prefill, and may call those of its tools that are in the caller's prompt. Its
        instructions come before the task. Otherwise it works on a trunk of its own. Its turn gets the caller's `deps`,
        and its approval requests go to the caller's approver.

        Args:
            name: name of the tool.
            description: what the calling model reads of it.
            fork: whether it works on a fork of the caller's branch, where there is no `context`.
            context: another Context that it works in, on a trunk of its own: a smaller model, say. Or one of several
                models, `pool.model("worker")` of `kv.open_models`, which is in use for the length of each call. It must
                be open, on the same event loop, when a turn of the caller begins.
            adapter: a LoRA adapter that it works under, of that Context, or without one of the caller's. A fork is
                under it from its beginning on; None leaves it the caller's.

        Raises:
            InvalidInput: an argument of the wrong type, or an adapter for a model of a pool, which is opened anew.
            AdapterError: `adapter` is none of `context`.
        """
        return sub_agent(self, name, description, SubAgentPlace(fork, context, adapter))

    async def _run_for(self, context: RunContext[Any], branch: Branch, prompt: Prompt) -> Run[Out]:
        """Runs a turn as a tool call of another agent's turn, with the caller's deps and approver."""
        assert context._log is not None  # of a call
        ask, log = context._ask or approver_of(None), context._log.of_call(context.call_key, handle_of(branch).core)
        turn = await self._turn(branch, context.deps, self.steering, ignore_event, ask, log=log)
        return await turn.run(prompt, False)

    def _steered(self, steer: Steer) -> Steering:
        check_keywords(steer, "a turn of an Agent", RunKwargs.__annotations__)
        return replace(self.steering, **steer) if steer else self.steering

    async def _turn(
        self,
        branch: Branch,
        deps: Any,
        steering: Steering,
        emit: Emit,
        ask: Ask,
        control: TurnControl | None = None,
        *,
        log: TurnLog | None = None,
        **heard: Unpack[Heard],
    ) -> Turn[Out]:
        _check_branch(branch)
        tools = await self._all_tools()
        context = RunContext(deps, branch, self, _ask=ask)
        core = handle_of(branch).core
        by_name = {tool.name: tool for tool in tools}
        for tool in tools:
            if isinstance(tool, SubAgent):
                tool.place.check_open()
        steering.check(self, by_name)
        warn_missing_tools(branch, by_name)
        environment = ToolEnvironment(
            by_name,
            context,
            core.singleton(ToolThreads),
            core.chat.tokenizer,
            emit,
            ask,
            log=log or new_turn_log(core),
            **heard,
        )
        return Turn(self, branch, environment, steering, control or TurnControl())

    async def _all_tools(self) -> tuple[Tool[Any, ..., Any], ...]:
        further = [tool for toolset in self.toolsets for tool in await toolset.tools()]
        return checked_tools([*self.tools, *further])


def _check_branch(branch: object) -> None:
    """Raises InvalidInput for what is no Branch; as its verbs do for one that takes no turn now."""
    if not isinstance(branch, Branch):
        raise InvalidInput(f"branch is {preview(branch)}, but it must be a Branch; `await agent.trunk(ctx)` makes one")
    handle_of(branch).check_free()


type.__setattr__(Agent, "__init__", known_keywords(vars(Agent)["__init__"]))  # which the dataclass made
