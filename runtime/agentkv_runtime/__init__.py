"""Runtime of agentkv: export, model folders, native programs and caches."""
