"""What the event loop knows of each branch: tokens, conversation, marks; and who observes it."""
