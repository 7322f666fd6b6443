"""One-time join tokens for nodes that a script is about to start: simulated nodes, benchmarks."""

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from controlplane.management.commands.bootstrap import write_private
from fleet import joining
from fleet.models import MachineKind
from kernel import actors


class Command(BaseCommand):
    """Writes ``{name: token}``; every token is good for one node."""

    help = "Make a one-time join token for each named node and write them to a private file as JSON."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", nargs="+", help="names of the nodes")
        parser.add_argument("--write", type=Path, required=True, help="the file to write (mode 0600)")

    def handle(self, *args: Any, **options: Any) -> None:
        actor = actors.system("join_tokens")
        with transaction.atomic():
            tokens = {
                name: joining.create_join_token(actor=actor, kind=MachineKind.NODE, name=name)[1]
                for name in options["names"]
            }
            write_private(options["write"], json.dumps(tokens))
        self.stdout.write(f"{len(tokens)} tokens written\n")
