"""How records lie in files: frames, TFRecords, compression, documents of one message, tables of other programs."""
