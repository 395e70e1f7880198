"""Everything gRPC: generated messages, conversion, status codes, channels and servers."""
