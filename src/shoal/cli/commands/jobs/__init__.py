"""`shoal job …`: lists, shows, changes and ends jobs of any engine. Each module here registers a few commands.

What only one engine has is in a room of its own, such as `services`; it waits for jobs with `waiting` here.
"""

import typer

from shoal.cli.commands.jobs import changing, reading, submitting, upgrading

app = typer.Typer(name="job", help="Jobs: services and everything else that has workloads.", no_args_is_help=True)
submitting.register(app)
reading.register(app)
changing.register(app)
upgrading.register(app)
