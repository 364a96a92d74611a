"""Evaluating a model with tools: cases, runs of them, judgement, tables and pages."""
