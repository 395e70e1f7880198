"""The floor: errors, ids, time, randomness, settings, files, telemetry. Knows no domain and imports nothing of ours."""
