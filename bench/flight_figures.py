"""What is promised of Arrow Flight between hosts: for the areas `exchange` and `jobs`. Task hosts import it, too."""

from __future__ import annotations

from bench.figures import Figure, at_least

FIGURES = (
    Figure("flight", "MB/s", "A channel of the exchange, with byte credits of 16 MB."),
    Figure("flight_bare", "MB/s", "The same batches by one `do_put` of Flight, in turn with it."),
    Figure(
        "flight_to_bare",
        "×",
        "`flight` divided by `flight_bare`.",
        bar=at_least(0.8),
        quotient=("flight", "flight_bare"),
    ),
)
