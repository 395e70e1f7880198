"""Numbered files of SQL that bring a database up to date; `shoal.control.store.migrate` applies them in order."""
