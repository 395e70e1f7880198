"""The transport over sockets: gRPC channels, servers, why a peer cannot be reached, and HTTP beside them."""
