"""Python tests under ThreadSanitizer: `make tsan`."""
