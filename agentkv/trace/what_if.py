"""Replays with changed results of calls: branches that read one run anew, the others stay as recorded."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._context.handle import core_of, handle_of
from .._types.errors import AgentKVError, InvalidInput
from .._types.show import safe_str
from .conversations import conversation_of
from .records import AnyRecord, Branched, CallEnded, Conversed, GenerateParams, JobBegan, Logged, Verb
from .replayed import Changed, Replayed
from .story import Story, canonical

if TYPE_CHECKING:
    from .._chat.conversation import Conversation
    from .._context.branch import Branch
    from .._types.message import Message
    from .player import Player

MOST_ROUNDS = 16  # of calls, in a turn that goes another way


class WhatIf:
    """Plays the branches that a changed result has reached, in place of the replay's player.

    Args:
        story: the recording.
        given: pairs (call, changed result).
        result: receives the changed branches.

    Raises:
        InvalidInput: there is no such call, or no branch has read its result.
    """

    def __init__(self, story: Story, given: Sequence[tuple[str, str]], result: Replayed) -> None:
        self._story = story
        self._result = result
        self._results = {(each.name, story.arguments(each)): each.content for each in story.results}
        self._changes: dict[int, int] = {}  # by the index of the Logged record with a result: index of its Conversed
        self._override: dict[tuple[int, str], str] = {}
        for name, content in given:
            call = story.call(name)
            self._override[call.turn, call.call] = content
            self._results[call.name, story.arguments(call)] = content
            at, said = self._entered(call)
            self._changes[at] = said
        self._changed: dict[int, ChangedBranch] = {}

    def _entered(self, call: CallEnded) -> tuple[int, int]:
        """Indices of the records in which the result's tokens enter the branch, and in which they become messages."""
        records, branch = self._story.records, self._story.turns[call.turn].branch
        began = next(i for i, record in enumerate(records) if record is call)
        logged = -1
        for at in range(began, len(records)):
            record = records[at]
            if isinstance(record, Logged) and record.branch == branch:
                logged = at
            if isinstance(record, Conversed) and record.branch == branch and logged >= 0:
                values = [self._story.value(number) for number, *_ in record.messages]
                if any(each.get("role") == "tool" and each.get("tool_call_id") == call.call for each in values):
                    return logged, at
        raise InvalidInput(f"no branch has read the result of {call.turn}:{call.call}: its turn ended before that")

    def takes(self, player: Player, index: int, record: AnyRecord) -> bool:
        """Handles a record with a changed result or of a changed branch. Returns False to leave it to the player."""
        if index in self._changes:
            said = self._story.records[self._changes[index]]
            assert isinstance(said, Conversed)
            player.follow(record)
            self._begin(player, said)
            return True
        branch = getattr(record, "branch", -1)
        if isinstance(record, Branched) and record.source in self._changed:
            player.follow(record)
            self._fork(player, record)
        elif isinstance(record, Verb) and record.name == "adopt":
            return self._adopt(player, record)
        elif branch not in self._changed:
            return False
        elif isinstance(record, Verb):
            return self._verb(player, record)
        else:
            player.follow(record)
            self._go_on(player, self._changed[branch], index, record)
        return True

    async def end(self, player: Player) -> None:
        """Adds the changed branches that are left to the result."""
        for way in [*self._changed.values()]:
            self._note(player, way)

    def _begin(self, player: Player, said: Conversed) -> None:
        conversation = conversation_of(self._story.values, said.state)
        tokens = player.logs[said.branch][: conversation.previous_length]
        messages = _messages_given(conversation)
        turn = max(t.turn for t in self._story.turns.values() if t.branch == said.branch and t.at <= said.at)
        for message in messages:
            message["content"] = self._override.get((turn, str(message.get("tool_call_id"))), message["content"])
        before = conversation.previous
        way = self._changed[said.branch] = ChangedBranch(said.branch, len(tokens), in_turn=True)
        how = self._next_how(said)

        async def change() -> None:
            await player.sync(said.branch, array("i", tokens))
            branch = player.branches[said.branch]
            if before is not None:
                handle_of(branch).state.set_conversation(before)
            way.live_from = len(branch)
            await branch.extend(messages)
            await self._turn(player, way, branch, how)

        player.later(change, said.branch, failed=way.stop)

    def _next_how(self, said: Conversed) -> GenerateParams | None:
        """How the branch generates next."""
        return next(
            (
                record.how
                for record in self._story.records
                if isinstance(record, JobBegan) and record.branch == said.branch and record.how and record.at > said.at
            ),
            None,
        )

    async def _turn(self, player: Player, way: ChangedBranch, branch: Branch, how: GenerateParams | None) -> None:
        """Generates messages, and answers their calls by results of the trace, until a message makes no call."""
        for _ in range(MOST_ROUNDS):
            if how is None or way.note.stopped:
                return
            if how.grammar is None:
                way.note.stopped = "its constraint is written in Python"
                return
            await player.generated(branch, how, how.max_tokens)
            last = branch.messages[-1] if branch.messages else None
            if last is None or last.role != "assistant" or not last.calls:
                return
            results = self._answers(way, last)
            if results is None:
                return
            await branch.extend(results)
        way.note.stopped = f"it still made calls after {MOST_ROUNDS} messages"

    def _answers(self, way: ChangedBranch, message: Message) -> list[Mapping[str, Any]] | None:
        results: list[Mapping[str, Any]] = []
        for call in message.calls:
            arguments = canonical(json.dumps(dict(call.arguments or {})))
            content = self._results.get((call.name, arguments))
            if content is None:
                way.note.stopped = f"it calls {call.name}{arguments}, of which the trace has no result"
                return None
            results.append({"role": "tool", "name": call.name, "tool_call_id": call.id, "content": content})
        return results

    def _go_on(self, player: Player, way: ChangedBranch, index: int, record: AnyRecord) -> None:
        """Replays the recorded inputs of a changed branch after its change, and generates its outputs anew."""
        if isinstance(record, Conversed):
            conversation = conversation_of(self._story.values, record.state)
            given = _messages_given(conversation)
            if given and all(message.get("role") != "tool" for message in given):
                way.in_turn = False
                player.later(lambda: self._extend(player, way, given), way.number, failed=way.stop)
            return
        if isinstance(record, JobBegan) and record.kind == "generate" and not way.in_turn:
            how = record.how
            way.in_turn = True

            async def turn() -> None:
                if way.number in player.branches:
                    await self._turn(player, way, player.branches[way.number], how)

            player.later(turn, way.number, failed=way.stop)

    async def _extend(self, player: Player, way: ChangedBranch, given: list[dict[str, Any]]) -> None:
        if not way.note.stopped and way.number in player.branches:
            await player.branches[way.number].extend(given)

    def _fork(self, player: Player, record: Branched) -> None:
        source = self._changed[record.source]
        ways = [ChangedBranch(number, source.recorded_from, in_turn=source.in_turn) for number in record.branches]
        self._changed.update((way.number, way) for way in ways)

        async def fork() -> None:
            for way in ways:
                if record.source not in player.branches:
                    way.note.stopped = "what it is forked from is not there"
                    continue
                player.branches[way.number] = await player.branches[record.source].fork()
                way.live_from = source.live_from
                way.note.stopped = source.note.stopped

        player.later(fork, record.source, *record.branches)

    def _adopt(self, player: Player, record: Verb) -> bool:
        source, target = self._changed.get(record.numbers[0]), self._changed.get(record.branch)
        if source is None:
            if target is not None:  # the source is as recorded, so the branch is again
                self._leave(player, target)
            return False
        player.follow(record)
        way = self._changed[record.branch] = ChangedBranch(record.branch, source.recorded_from, in_turn=source.in_turn)

        async def adopt() -> None:
            target, other = player.branches.get(record.branch), player.branches.get(source.number)
            if target is not None and other is not None:
                await target.adopt(other)
            way.live_from = source.live_from
            way.note.stopped = source.note.stopped

        player.later(adopt, record.branch, source.number)
        return True

    def _verb(self, player: Player, record: Verb) -> bool:
        way = self._changed[record.branch]
        if record.name == "rollback" and record.numbers[0] <= way.recorded_from:
            self._leave(player, way)  # it is as recorded again
            return False
        if record.name == "close":
            self._leave(player, way)
            return False
        player.follow(record)
        if record.name == "rollback":
            way.note.stopped = way.note.stopped or "it went back to where this run never was"
        return True

    def _leave(self, player: Player, way: ChangedBranch) -> None:
        del self._changed[way.number]

        async def note() -> None:
            self._note(player, way)

        recorded = array("i", player.logs[way.number])
        way.recorded = recorded
        player.later(note, way.number)

    def _note(self, player: Player, way: ChangedBranch) -> None:
        branch = player.branches.get(way.number)
        spelled = core_of(player.ctx).chat.tokenizer.decode
        recorded = player.logs.get(way.number, array("i")) if way.recorded is None else way.recorded
        way.note.recorded = spelled(recorded[way.recorded_from :].tolist(), skip_special=False)
        if branch is not None:
            way.note.now = spelled(branch.tokens[way.live_from :], skip_special=False)
        self._result.changed.append(way.note)


class ChangedBranch:
    """A changed branch: the lengths from which it differs, in the trace and in this run, and its state."""

    def __init__(self, number: int, recorded_from: int, *, in_turn: bool) -> None:
        self.number = number
        self.recorded_from = recorded_from
        self.live_from = 0
        self.in_turn = in_turn  # such a turn runs to its own end, independent of the recorded messages
        self.recorded: array[int] | None = None
        self.note = Changed(number)

    def stop(self, error: AgentKVError) -> None:
        """Stops the branch with an error."""
        self.note.stopped = f"{type(error).__name__}: {safe_str(error)}"


def _messages_given(conversation: Conversation) -> list[dict[str, Any]]:
    """Messages that the conversation adds to the one before it and that no model generated."""
    return [
        dict(entry.message)
        for entry in conversation.entries
        if entry.parsed is None and entry.start >= conversation.previous_length
    ]
