"""agentkv beside llama.cpp and vLLM on a CPU: `make bench-peers`, or `python -m tests.benchmarks.peers --help`."""
