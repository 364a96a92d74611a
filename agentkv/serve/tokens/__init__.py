"""`/v1/tokens`, `/tokenize` and `/detokenize`: token ids in, token ids out."""
