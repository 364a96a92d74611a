"""Messages to text to tokens, and back: templates, call formats, conversations."""
