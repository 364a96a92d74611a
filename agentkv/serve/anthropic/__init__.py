"""Protocol of Anthropic's Messages API."""
