"""Evaluation of a model's tool use: cases, runners, judgement, tables and pages."""
