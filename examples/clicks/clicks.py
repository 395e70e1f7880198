"""Click-through rates, live: impressions and clicks joined in event time, exactly once.

Reads the topics `impressions` and `clicks`, and writes three others: `joined` has each click with its impression,
`rates` has impressions and clicks of each ad by window, `late` has what came too late for its time. Run it with
`shoal run clicks.py`, and `python -m clicks.feed` beside it for traffic. Kill either one: nothing is lost.
"""

from __future__ import annotations

from shoal import App, Stream, col, lit, tumbling

#: A click belongs to its impression if it comes this soon.
WITHIN_SECONDS = 2
#: Results are given for windows of this length.
WINDOW_SECONDS = 2
#: Events may come this much out of order.
DISORDER = "500ms"

app = App("clicks", checkpoint_interval="100ms", exactly_once=True)
app.topic(
    "impressions",
    schema={"impression": "int64", "ad": "string", "shown_at": "int64"},
    event_time="shown_at",
    time_unit="ms",
    disorder=DISORDER,
    partitions=2,
)
app.topic(
    "clicks",
    schema={"click": "int64", "impression": "int64", "clicked_at": "int64", "sent_at": "int64"},
    event_time="clicked_at",
    time_unit="ms",
    disorder=DISORDER,
    partitions=2,
)


def once(topic: str, key: str) -> Stream:
    """The events of a topic without those that were sent again; what comes too late goes to the topic `late`.

    An event that is sent again has the time of the first: it falls into the same millisecond. So nothing has to be
    remembered for longer than events may be out of order.
    """
    events = Stream.from_topic(topic).window(tumbling(milliseconds=1)).distinct(key).uid(f"once-{topic}")
    events.side_output("late").select(topic=lit(topic), event=col(key)).to_topic("late").uid(f"late-{topic}")
    return events


@app.dataflow()
def rates() -> object:
    """Clicks with their impressions, and how many of each ad's impressions were clicked."""
    impressions, clicks = once("impressions", "impression"), once("clicks", "click")
    joined = impressions.join(clicks, on="impression", within=(0, WITHIN_SECONDS)).uid("join")
    counted = impressions.select("ad", shown=1, clicked=0).union(joined.select("ad", shown=0, clicked=1))
    windows = counted.group_by("ad").window(tumbling(seconds=WINDOW_SECONDS))
    totals = windows.aggregate(shown=("shown", "sum"), clicked=("clicked", "sum")).uid("windows")
    return [
        joined.to_topic("joined").uid("joined"),
        totals.with_columns(rate=col("clicked") / col("shown")).to_topic("rates").uid("rates"),
    ]


if __name__ == "__main__":
    app.run()
