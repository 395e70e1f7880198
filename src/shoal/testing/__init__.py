"""The public test kit: virtual time, doubles, conformance suites, whole fleets in one process."""
