"""Agents: instructions, tools and limits, and the turns that they take on branches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, overload

from typing_extensions import TypeForm, TypeVar, Unpack

from .._branch import Branch
from .._errors import InvalidInput
from .._inputs import checked_count, checked_sampling, items_of, text_of
from .._messages import checked_template
from .._shown import shown
from .._speculation import INHERIT, Inherit, Speculative
from .._thinking import Thinking, checked_thinking, template_switches
from .answers import Answers
from .asking import Approve, asking
from .calling import Desk, nobody
from .options import AfterCall, BeforeRound, How, Options, Toolset, check_hooks, checked_tools
from .run_context import RunContext
from .stream import AgentStream
from .sub_agent import sub_agent
from .tool import Tool, check_seconds
from .trunks import warn_of_untold
from .turn import Turn

if TYPE_CHECKING:
    from .._context import Context
    from .._inputs import Prompt
    from .._sampling import Sampling
    from ..output.grammar import GrammarSource
    from .calling import Ask, Emit, Unheard
    from .run import Run
    from .step import Step

Deps = TypeVar("Deps", contravariant=True, default=None)
Out = TypeVar("Out", covariant=True, default=str)


@dataclass(frozen=True, eq=False)
class Agent(Generic[Deps, Out]):
    """Instructions, tools, and what an answer is; frozen. What happens is on branches: `agent.run(branch, ...)`.

    `Agent[Deps, Out]`: what its tools are given as `deps`, and what it answers with. Both are inferred, but where only
    some of the tools take a RunContext: write `kv.Agent[Deps, str](...)` there.

    Attributes:
        instructions: the system prompt.
        tools: made by `kv.tool`, each with a name of its own.
        output: what an answer is: `str`, or a type, kv.Regex, kv.JsonSchema, kv.Grammar as `Branch.generate` takes
            them. With tools it must have a JSON schema.
        max_rounds: most messages of a turn.
        max_tokens: most tokens that are generated in a turn.
        max_calls: most calls of a turn; None for any number.
        max_seconds: longest time of a turn.
        sampling: how tokens are drawn; None is greedy.
        speculative: a strategy of `kv.spec` or your own, None for none; left out, as the Context does.
        toolsets: further tools, asked for before each turn.
        output_retries: how often an answer that its type refuses is asked for again.
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
    max_calls: int | None = None
    max_seconds: float = math.inf
    sampling: Sampling | None = None
    speculative: Speculative | Inherit | None = INHERIT
    toolsets: Sequence[Toolset] = ()
    output_retries: int = 1
    thinking: Thinking = None
    template: Mapping[str, Any] | None = None
    before_round: BeforeRound | None = None
    after_call: AfterCall | None = None
    answers: Answers[Out] = field(init=False, repr=False)

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Agent[Deps, str],
            instructions: str = "",
            *,
            tools: Sequence[Tool[Deps, ..., Any]] = (),
            **options: Unpack[Options],
        ) -> None: ...
        @overload
        def __init__(
            self,
            instructions: str = "",
            *,
            output: TypeForm[Out],
            tools: Sequence[Tool[Deps, ..., Any]] = (),
            **options: Unpack[Options],
        ) -> None: ...
        @overload
        def __init__(
            self,
            instructions: str = "",
            *,
            output: GrammarSource[Out],
            tools: Sequence[Tool[Deps, ..., Any]] = (),
            **options: Unpack[Options],
        ) -> None: ...
        def __init__(self, instructions: str = "", **options: Any) -> None: ...

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        if not isinstance(self.instructions, str):
            raise InvalidInput(f"instructions are {shown(self.instructions)}, but they must be a str")
        text_of(self.instructions, "instructions")
        object.__setattr__(self, "tools", checked_tools(self.tools))
        object.__setattr__(self, "answers", Answers(self.output))
        object.__setattr__(self, "toolsets", tuple(items_of(self.toolsets, "toolsets")))
        self.answers.check(bool(self.tools or self.toolsets))
        checked_count(self.max_rounds, "max_rounds", 1)
        checked_count(self.max_tokens, "max_tokens", 1)
        checked_count(self.output_retries, "output_retries", 0)
        if self.max_calls is not None:
            checked_count(self.max_calls, "max_calls", 0)
        if self.max_seconds != math.inf:
            check_seconds(self.max_seconds, "max_seconds", zero=False)
        if self.sampling is not None:
            checked_sampling(self.sampling)
        checked_thinking(self.thinking)
        checked_template(self.template, known=True)
        check_hooks(before_round=self.before_round, after_call=self.after_call)

    async def trunk(self, context: Context) -> Branch:
        """A branch with the system prompt and the tools, to fork and to run on.

        The prompt is prefilled once per Context however many trunks are opened, and kept there as long as the agent is
        referred to; `Context.keep` frees it.

        Raises as `Context.branch` does, and InvalidInput for tools where the model's call format is not known.
        """
        home = getattr(context, "_home", None)
        if home is None or home.context is not context:
            raise InvalidInput(f"context is {shown(context)}, but it must be a Context; `kv.Context.open` opens one")
        tools = await self._all_tools()
        definitions = [tool.definition for tool in tools]
        self.answers.constraint(home.format, definitions)  # what cannot be held is said here
        trunk: Branch = await home.trunks.fork(self, context, definitions)
        return trunk

    @overload
    async def run(
        self: Agent[None, Out],
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: None = None,
        **how: Unpack[How],
    ) -> Run[Out]: ...
    @overload
    async def run(
        self,
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: Deps,
        **how: Unpack[How],
    ) -> Run[Out]: ...

    async def run(
        self,
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: Any = None,
        approve: Approve | None = None,
        keep_partial: bool = False,
    ) -> Run[Out]:
        """One turn: the question, rounds of messages and calls, the answer.

        A turn is a transaction: an error, a limit or a cancellation leaves the branch where the turn began; what tools
        did meanwhile stays done, and `error.run` has the record of it. While it runs, verbs on the branch raise
        BranchBusy; `fork` does not mind.

        Args:
            branch: a trunk of this agent, or a fork of one.
            prompt: the user's words, or chat messages; None where the branch holds the question already.
            deps: what tools get as `RunContext.deps`.
            approve: decides on calls of tools that say approve=True: it gets a `kv.events.ApprovalAsked` and returns
                True or False, or answers the event. Without it they are denied.
            keep_partial: keep on the branch what was done, whatever ends the turn early: the message as far as it came,
                and where that was whole, the results of its calls.

        Raises:
            LimitReached: one of the agent's limits.
            ToolFailed: a tool with on_error="raise" failed.
            OutputInvalid: the answer was refused by its type, and so were its retries.
            AgentKVError: as the verbs do: ContextFull, BranchBusy, StepFailed and so on.
        """
        turn = await self._turn(branch, deps, nobody, asking(approve))
        return await turn.run(_as_messages(prompt), keep_partial)

    @overload
    def stream(
        self: Agent[None, Out],
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: None = None,
        **how: Unpack[How],
    ) -> AgentStream[Out]: ...
    @overload
    def stream(
        self,
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: Deps,
        **how: Unpack[How],
    ) -> AgentStream[Out]: ...

    def stream(
        self,
        branch: Branch,
        prompt: Prompt | None = None,
        *,
        deps: Any = None,
        approve: Approve | None = None,
        keep_partial: bool = False,
    ) -> AgentStream[Out]:
        """As `run`, with what happens as it happens: `async with agent.stream(branch, "...") as events: ...`.

        Calls of tools that say approve=True come as `kv.events.ApprovalAsked`, unless there is a callback. Leaving the
        block before `Finished` was read cancels the turn; with `keep_partial` the branch then holds the text that was
        read.
        """
        return AgentStream(
            lambda emit, ask, unheard: self._turn(branch, deps, emit, ask, unheard),
            lambda turn: turn.run(_as_messages(prompt), keep_partial),
            approve,
            waits=keep_partial,
        )

    @overload
    async def step(self: Agent[None, Out], branch: Branch, *, deps: None = None, **how: Unpack[How]) -> Step[Out]: ...
    @overload
    async def step(self, branch: Branch, *, deps: Deps, **how: Unpack[How]) -> Step[Out]: ...

    async def step(
        self, branch: Branch, *, deps: Any = None, approve: Approve | None = None, keep_partial: bool = False
    ) -> Step[Out]:
        """One round, for loops of your own: a message, and the results of its calls. A transaction, as `run`.

        The branch holds the question: `await branch.extend([{"role": "user", "content": "..."}])`. The message is the
        answer where `step.done`. Raises as `run` does.
        """
        turn = await self._turn(branch, deps, nobody, asking(approve))
        return await turn.step(keep_partial)

    def as_tool(self, name: str, description: str, *, fork: bool = True) -> Tool[Deps, ..., Any]:
        """This agent as a tool of another one: the model calls it with a task, and reads its output.

        With `fork` it works on a fork of the caller's branch, as that was before the message that calls it: it knows
        what its caller knows, costs no prefill, and may call those of its tools that its caller was told of. Its
        instructions come before the task. Otherwise it works on a trunk of its own. Its turn gets the caller's `deps`,
        and the caller's person decides on what it wants approved.
        """
        return sub_agent(self, name, description, fork)

    async def _prompt(self, context: Context, definitions: Sequence[Mapping[str, Any]]) -> Branch:
        """A new branch with the system prompt and the tools."""
        messages = [{"role": "system", "content": self.instructions}]
        switches = template_switches(self.thinking, context._home.tokenizer.template_variables)
        template = {**switches, **(self.template or {})}
        return await context.branch(messages, tools=definitions or None, template=template or None)

    async def _run_for(self, context: RunContext[Any], branch: Branch, prompt: Prompt) -> Run[Out]:
        """A turn that is a call of another agent's turn."""
        turn = await self._turn(branch, context.deps, nobody, context._ask or asking(None))
        return await turn.run(prompt, False)

    async def _turn(self, branch: Branch, deps: Any, emit: Emit, ask: Ask, *unheard: Unheard) -> Turn[Out]:
        if not isinstance(branch, Branch):
            raise InvalidInput(
                f"branch is {shown(branch)}, but it must be a Branch; `await agent.trunk(ctx)` makes one"
            )
        branch._check_started("an agent's turn")
        tools = await self._all_tools()
        context = RunContext(deps, branch, self, _ask=ask)
        home = branch._home
        by_name = {tool.name: tool for tool in tools}
        warn_of_untold(branch, by_name)
        return Turn(self, branch, Desk(by_name, context, home.tool_threads, home.tokenizer, emit, ask, *unheard))

    async def _all_tools(self) -> Sequence[Tool[Any, ..., Any]]:
        further = [tool for toolset in self.toolsets for tool in await toolset.tools()]
        return checked_tools([*self.tools, *further])


def _as_messages(prompt: Prompt | None) -> Prompt | None:
    """What a user says is a user's message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str | bytes) else prompt
