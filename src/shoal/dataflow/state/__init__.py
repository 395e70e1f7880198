"""Keyed state: kept by key group, in memory or on disk, snapshotted and restored by key group."""
