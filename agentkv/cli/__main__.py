"""`python -m agentkv.cli`: the command line."""

from agentkv_command import main

if __name__ == "__main__":
    main()
