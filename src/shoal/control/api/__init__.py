"""What callers see: the gRPC services (convert, call, convert), views, pages and the event feed. No decisions here."""
