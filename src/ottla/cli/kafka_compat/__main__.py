"""`python -m ottla.cli.kafka_compat kafka-topics --list …`: any tool, without its script."""

from __future__ import annotations

import sys

from ottla.cli.kafka_compat import TOOLS, run, tool_name

if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(f"name a tool: {', '.join(TOOLS)}", file=sys.stderr)
        sys.exit(1)
    sys.exit(run(tool_name(sys.argv[1]), sys.argv[2:]))
