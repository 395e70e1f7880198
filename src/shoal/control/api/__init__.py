"""What callers see: the gRPC services (conversion only), views, pages and the event feed. No decisions here."""
