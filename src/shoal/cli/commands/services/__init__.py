"""`shoal service …`: replicas of one workload with rolling updates. A service is a job of the engine `service`."""

import typer

from shoal.cli.commands.services import applying, reading

app = typer.Typer(name="service", help="Replicas of one workload, with rolling updates.", no_args_is_help=True)
applying.register(app)
reading.register(app)
