"""What several commands share: reading spec files, choosing workloads, waiting for them, lists and previews."""
