"""What users write: apps, streams, their steps, and how they are started. It makes logical plans and hands them on."""
