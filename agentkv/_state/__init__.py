"""State of branches on the event loop: tokens, conversation, marks; and its observers."""
