"""What plans are made of: logical nodes, expressions and their types, windows, keys, batches. It runs nothing."""
