"""Programs written from a model's files without torch, equal to those that tracing the model makes."""
