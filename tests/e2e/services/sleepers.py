"""Services whose replicas only sleep."""

import json


def sleepers(count, *, word="one"):
    """The spec of such a service."""
    return json.dumps(
        {
            "count": count,
            "update": {"parallel": 10, "settle": "0s"},
            "workload": {
                "type": "process",
                "resources": {"cpu_millicores": 10, "memory_mb": 16},
                "process": {"command": ["sleep", "3600"], "env": {"WORD": word}, "stop": {"grace": "2s"}},
            },
        }
    ).encode()
