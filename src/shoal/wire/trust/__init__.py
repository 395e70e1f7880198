"""Who a peer is and what it may do: certificates, credentials of connections, and the tables of roles."""
