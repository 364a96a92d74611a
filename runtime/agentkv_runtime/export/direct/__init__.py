"""Programs written from what a model's files say, without torch: the same that tracing the model would make."""
