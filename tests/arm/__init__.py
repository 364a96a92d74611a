"""Runs on Arm: a cross build under qemu-user beside the same on this machine (`make test-arm`)."""
