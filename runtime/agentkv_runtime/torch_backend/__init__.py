"""`backend="torch"`: Hugging Face folders run as they are, on any device that torch has."""
