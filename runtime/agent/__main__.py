"""``python -m runtime.agent``."""

import sys

from runtime.agent.main import main

if __name__ == "__main__":
    sys.exit(main())
