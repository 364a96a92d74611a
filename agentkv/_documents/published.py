"""A branch as one process hands it to another through a server: its tokens and the state needed to continue it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from .._types.errors import InvalidInput
from .._types.show import preview
from .conversations import ConversationWriter, Count, DocumentModel, Name, SavedConversations, SavedOutput, reach_of

if TYPE_CHECKING:
    from .._chat.conversation import Conversation

_NAME = re.compile(r"(?!br_)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class PublishedBranch(DocumentModel):
    """A branch on the wire. The last of `conversations` is its own."""

    tokens: list[Count]
    rng_stream: Annotated[int, Field(ge=0, lt=2**64)]
    forks: Annotated[int, Field(ge=0, lt=2**32)]
    conversations: SavedConversations
    marks: dict[Name, Count]
    output: SavedOutput | None

    def conversation(self) -> Conversation:
        """The branch's conversation. Raises InvalidInput or ValueError if it does not fit the tokens."""
        made = self.conversations.made()
        if not made:
            raise ValueError("a branch without a conversation")
        reaches = max(reach_of(made[-1], self.marks), 0 if self.output is None else self.output.end)
        if reaches > len(self.tokens):
            raise ValueError(f"a branch of {len(self.tokens)} tokens with something at {reaches}")
        return made[-1]


def checked_publication(name: object) -> str:
    """A valid name of a published branch. Raises InvalidInput."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"name is {preview(name)}, but a published branch is named by 1 to 64 letters, digits, '_', '.' and '-', "
            "the first one a letter or a digit, and not by what begins with 'br_'"
        )
    return name


def conversation_saved(conversation: Conversation) -> SavedConversations:
    """Saves one conversation with those that it continues."""
    saver = ConversationWriter()
    saver.add(conversation)
    return saver.result()
